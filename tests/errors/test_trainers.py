"""Trainers: what they are, and that every parameter has exactly one."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from multifit import TrainerError, TrainerSpec

import mxnet as mx  # isort: skip
from mxnet import gluon

from .setups import Setup, around, fault

BODY, HEADS = TrainerSpec("body.*"), TrainerSpec("(digit|amount).*")


# fmt: off
FAULTS = [
    fault("string", lambda net: "adam",
        'trainers: \'adam\' is neither a TrainerSpec nor a gluon.Trainer; give TrainerSpec(".*", "adam")'),
    fault("list", lambda net: [BODY, HEADS],
        'several trainers need names: give a dict, such as {"body": Trainer'),
    fault("empty dict", lambda net: {},
        "trainers: the dict is empty; name at least one trainer, or leave trainers="),
    fault("foreign ParameterDict", lambda net: TrainerSpec(gluon.nn.Dense(2).collect_params()),
        "trainers: the ParameterDict selects none of the net's parameters"),
    fault("name", lambda net: {3: TrainerSpec(".*")},
        "trainers: 3 is not a name; name each trainer with a string"),
    fault("pattern of nothing", lambda net: {"a": TrainerSpec("bdy.*"), "b": HEADS},
        'trainers["a"]: the pattern "bdy.*" selects none of the net\'s parameters',
        'a pattern must match a whole name, such as "body.0.weight", "body.0.bias"'),
    fault("pattern of a part", lambda net: {"a": TrainerSpec("body"), "b": HEADS},
        'the pattern "body" selects none', '(did you mean "body.*"?)'),
    fault("pattern near a name", lambda net: {"a": BODY, "b": TrainerSpec("digit.weigth")},
        '(did you mean "digit.weight"?)'),
    fault("no regular expression", lambda net: TrainerSpec("(body"),
        'trainers: "(body" is not a regular expression: missing ), unterminated subpattern at position 0'),
    fault("params is a list", lambda net: TrainerSpec(["body.*", "digit.*"]),
        "['body.*', 'digit.*'] selects no par"),
    fault("foreign Block",
        lambda net: {"a": TrainerSpec(".*"), "b": TrainerSpec(gluon.nn.Dense(2, prefix="foreign_"))},
        'trainers["b"]: the Block foreign selects none of the net\'s parameters; its parameters are'),
    fault("in none", lambda net: {"body": BODY},
        'no trainer updates "digit.weight", "digit.bias", "amount.weight", "amount.bias", so they would',
        'add a TrainerSpec for them, or pass frozen=["digit.*", "amount.*"]'),
    fault("weights alone", lambda net: {"all": TrainerSpec(".*(weight|gamma|beta)")},
        'no trainer updates "body.0.bias", "digit.bias", "amount.bias"', 'pass frozen=[".*bias"]'),
    fault("not all of a layer", lambda net: {"all": TrainerSpec("amount.*|.*weight|body.0.*")},
        'no trainer updates "body.1.gamma", "body.1.beta", "digit.bias"',
        'pass frozen=["body.1.*", "digit.bias"]'),
    fault("in two", lambda net: {"all": TrainerSpec(".*"), "body": TrainerSpec(net.body)},
        'the trainers all and body would update "body.0.weight", "body.0.bias", '
        '"body.1.gamma", "body.1.beta"',
        "each parameter belongs to exactly one: narrow a pattern"),
    fault("foreign gluon.Trainer", lambda net: gluon.Trainer(foreign(), "adam"),
        'trainers: holds parameters that the net does not have: "foreign_bias", "foreign_weight"',
        "build it from net.collect_params()"),
]
# fmt: on


def foreign() -> Any:
    net = gluon.nn.Dense(2, in_units=2, prefix="foreign_")
    net.initialize()
    return net.collect_params()


@pytest.mark.parametrize(("trainers", "texts"), FAULTS)
def test_wrong_trainers_are_an_error(setup: Setup, trainers: Any, texts: tuple) -> None:
    setup.with_trainers(trainers(setup.net)).refused(TrainerError, *texts)


def test_frozen_patterns(setup: Setup) -> None:
    trainers = {"heads": HEADS}
    setup.with_trainers(trainers, frozen=["bdy.*"]).refused(
        TrainerError, 'frozen: the pattern "bdy.*" selects none'
    )
    setup.with_trainers(trainers, frozen=[3]).refused(
        TrainerError, "frozen: 3 selects no parameters; give a pattern"
    )
    setup.with_trainers({"body": BODY, "heads": HEADS}, frozen="body.*").refused(
        TrainerError,
        'trainers["body"]: everything that it selects is frozen: "body.0.weight"',
        "leave it out, or narrow frozen=",
    )
    setup.with_trainers(trainers, frozen=[setup.net.body, setup.net.digit.weight]).trains()
    setup.with_trainers(trainers, frozen=["body.0.*", "body.1.*"]).trains()
    setup.with_trainers({"body": BODY, "heads": HEADS}, frozen=None).trains()


def test_a_frozen_parameter_in_a_gluon_trainer(setup: Setup) -> None:
    trainer = gluon.Trainer(setup.net.collect_params(), "sgd")
    setup.with_trainers(trainer, frozen=["body.0.*"]).refused(
        TrainerError,
        'trainers: updates parameters that frozen= names: "body.0.weight", "body.0.bias"',
        "take them out of the gluon.Trainer, or give a TrainerSpec, from which frozen parameters are",
    )
    setup.with_trainers(trainer).trains()
    setup.with_trainers(TrainerSpec(".*"), frozen=["body.0.*"]).trains()


@pytest.mark.parametrize(
    ("frozen", "text"),
    [
        ((), 'no trainer updates "body.0.weight", "body.0.bias", so they would stay as they are'),
        (["body.0.*"], 'trainers["all"]: updates parameters that frozen= names: "body.0.weight"'),
    ],
)
def test_what_becomes_trainable_is_checked(setup: Setup, frozen: Any, text: str) -> None:
    """A trainer whose parameters are all frozen for a while is none too many."""
    layer, held = setup.net.body[0].collect_params(), setup.net.collect_params()
    layer.setattr("grad_req", "null")
    if not frozen:
        held = [p for p in held.values() if p.grad_req != "null"]
    estimator = setup.with_trainers({"all": gluon.Trainer(held, "sgd")}, frozen=frozen).make()
    estimator.fit(setup.data, epochs=1)
    layer.setattr("grad_req", "write")
    for use in (partial(estimator.fit, epochs=1), estimator.check):
        before = setup.parameters()
        with pytest.raises(TrainerError) as raised:
            use(setup.data)
        assert text in str(raised.value)
        assert not setup.moved(before)
    layer.setattr("grad_req", "null")
    estimator.fit(setup.data, epochs=1)
    layer.setattr("grad_req", "write")  # other tests use the net


def test_a_net_without_parameters() -> None:
    net = around(lambda dense, x: x[:, :3])
    net.net.dense.collect_params().setattr("grad_req", "null")
    net.refused(TrainerError, "trainers: the net has no parameters to train")


def test_one_optimizer_object_in_two_trainers(setup: Setup) -> None:
    """MXNet overwrites its parameters without a word (pitfall 6); a TrainerSpec copies it."""
    one = mx.optimizer.Adam()
    body = gluon.Trainer(setup.net.body.collect_params(), one)
    heads = [*setup.net.digit.collect_params().values(), *setup.net.amount.collect_params().values()]
    text = "the trainers body and heads share one optimizer object, whose parameters and counters would mix"
    shared = {"body": body, "heads": gluon.Trainer(heads, one)}
    setup.with_trainers(shared).refused(TrainerError, text, "give each its own")
    setup.with_trainers({"body": body, "heads": TrainerSpec("(digit|amount).*", one)}).trains()
    specs = {"body": TrainerSpec("body.*", one), "heads": TrainerSpec("(digit|amount).*", one)}
    setup.with_trainers(specs).trains()


class Tied(gluon.HybridBlock):
    """A decoder with the weight of the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = gluon.nn.Dense(6, in_units=6)
        self.decoder = gluon.nn.Dense(6, in_units=6, use_bias=False, params=self.encoder.params)
        self.digit = gluon.nn.Dense(3, in_units=6)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.digit(self.decoder(self.encoder(x)))


@pytest.mark.parametrize("where", ["frozen", "initializer", "trainers"])
def test_the_second_name_of_a_shared_parameter_leads_to_the_first(where: str) -> None:
    other = around(lambda dense, x: dense(x))
    setup = other.but(net=Tied())
    option: Any = {
        "frozen": ["decoder.*"], "initializer": {"decoder.*": mx.init.One()},
        "trainers": {"a": TrainerSpec("decoder.*"), "b": TrainerSpec("digit.*|encoder.bias")},
    }[where]  # fmt: skip
    name = {"initializer": 'initializer["decoder.*"]', "trainers": 'trainers["a"]'}.get(where, where)
    text = 'the pattern "decoder.*" matches "decoder.weight", which is another name of the shared parameter '
    way_out = '"encoder.weight"; select it by that name'
    setup.but(estimator={where: option}).refused(TrainerError, f"{name}: {text}{way_out}")
    setup.but(estimator={"frozen": ["(encoder|decoder).weight"]}).fit()


def test_what_selects_only_parameters_without_gradients_says_so(caplog: pytest.LogCaptureFixture) -> None:
    setup = around(lambda dense, x: dense(x)).but(net=Tied())
    setup.net.digit.collect_params().setattr("grad_req", "null")
    setup.net.initialize()
    trainers = {"a": TrainerSpec("encoder.*"), "b": TrainerSpec("digit.*")}
    with caplog.at_level("INFO", "multifit"):
        setup.with_trainers(trainers).trains()
    names = '"digit.weight", "digit.bias"'
    message = (
        f'trainers["b"]: everything that it selects has grad_req="null": {names}; it trains nothing until'
    )
    assert caplog.text.count(message) == 1


def test_what_selects_only_running_statistics_says_so() -> None:
    norm = gluon.nn.BatchNorm(scale=False, center=False, in_channels=6)
    norm.initialize()
    setup = around(lambda dense, x: dense(norm(x)))
    setup.net.norm = norm
    trainers = {"a": TrainerSpec("dense.*"), "b": TrainerSpec(norm)}
    message = 'selects only what is not trained, such as running statistics: "norm.'
    setup.with_trainers(trainers).refused(TrainerError, message)


def test_a_trainer_may_have_nothing_to_update_for_a_while(setup: Setup) -> None:
    estimator = setup.with_trainers({"body": BODY, "heads": HEADS}).make()
    estimator.fit(setup.data, epochs=1)
    setup.net.body.collect_params().setattr("grad_req", "null")
    assert [bool(trainer.parameters) for trainer in estimator.check(setup.data).trainers] == [False, True]
    before = setup.net.body[0].weight.data().asnumpy()
    estimator.fit(setup.data, epochs=1)
    np.testing.assert_array_equal(setup.net.body[0].weight.data().asnumpy(), before)
    setup.net.body.collect_params().setattr("grad_req", "write")
