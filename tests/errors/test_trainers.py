"""Trainers: parameters, optimizers, initializers and devices; every parameter has exactly one trainer."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from multifit import SpecError, TrainerError, TrainerSpec
from tests.common.noted import with_notes

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip

from .setups import Setup, around, fault, new_setup, on

ALL, BODY, HEADS = ".*", TrainerSpec("body.*"), TrainerSpec("(digit|amount).*")
BOTH = {"body": BODY, "heads": HEADS}
RATE, SHARE = "valid is a finite number of at least 0", "valid is a finite number of at least 0 and below 1"
SCHEDULER = mx.lr_scheduler.PolyScheduler(9)
TWO = [mx.cpu(0), mx.cpu(1)]


def foreign() -> Any:
    net = gluon.nn.Dense(2, in_units=2, prefix="foreign_")
    net.initialize()
    return net


class Unpicklable:
    """Makes copies of an object fail."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Locked(Unpicklable, mx.lr_scheduler.LRScheduler):
    """A schedule that cannot be copied."""


class LockedSGD(Unpicklable, mx.optimizer.SGD):
    """An optimizer that cannot be copied."""


class OwnStep(gluon.Trainer):
    """A user's trainer, which changes gradients in its step."""

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        raise NotImplementedError


def with_own_step(parameters: Any) -> gluon.Trainer:
    """Return a trainer of which one method was replaced."""
    replaced = gluon.Trainer(parameters, "sgd")
    replaced.step = OwnStep.step.__get__(replaced)
    return replaced


OWN_STEP = ("overrides step(), which fit does not call", "give a TrainerSpec, with clip_norm= to clip, and")


def sgd(**options: Any) -> Callable[[Any], TrainerSpec]:
    return lambda net: TrainerSpec(ALL, "sgd", options)


# fmt: off
FAULTS = [  # what is made of a net and given as trainers, and the message
    fault("string", lambda net: "adam",
        'trainers: \'adam\' is neither a TrainerSpec nor a gluon.Trainer; give TrainerSpec(".*", "adam")'),
    fault("list", lambda net: [BODY, HEADS],
        'several trainers need names: give a dict, such as {"body": Trainer'),
    fault("empty dict", lambda net: {},
        "trainers: the dict is empty; name at least one trainer, or leave trainers="),
    fault("foreign ParameterDict", lambda net: TrainerSpec(gluon.nn.Dense(2).collect_params()),
        "trainers: the ParameterDict selects none of the net's parameters"),
    fault("name", lambda net: {3: TrainerSpec(ALL)},
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
    fault("foreign Block", lambda net: {"a": TrainerSpec(ALL), "b": TrainerSpec(foreign())},
        'trainers["b"]: the Block foreign selects none of the net\'s parameters; its parameters are'),
    fault("in none", lambda net: {"body": BODY},
        'no trainer updates "digit.weight", "digit.bias", "amount.weight", "amount.bias", so they would',
        'add a TrainerSpec for them, or pass frozen=["digit.*", "amount.*"]'),
    fault("weights alone", lambda net: {"all": TrainerSpec(".*(weight|gamma|beta)")},
        'no trainer updates "body.0.bias", "digit.bias", "amount.bias"', 'pass frozen=[".*bias"]'),
    fault("not all of a layer", lambda net: {"all": TrainerSpec("amount.*|.*weight|body.0.*")},
        'no trainer updates "body.1.gamma", "body.1.beta", "digit.bias"',
        'pass frozen=["body.1.*", "digit.bias"]'),
    fault("in two", lambda net: {"all": TrainerSpec(ALL), "body": TrainerSpec(net.body)},
        'the trainers all and body would update "body.0.weight", "body.0.bias", '
        '"body.1.gamma", "body.1.beta"',
        "each parameter belongs to exactly one: narrow a pattern"),
    fault("foreign gluon.Trainer", lambda net: gluon.Trainer(foreign().collect_params(), "adam"),
        'trainers: holds parameters that the net does not have: "foreign_bias", "foreign_weight"',
        "build it from net.collect_params()"),
    fault("kvstore that updates",
        lambda net: {"all": gluon.Trainer(net.collect_params(), "sgd", update_on_kvstore=True)},
        'trainers["all"]: updates on its kvstore', "update_on_kvstore=False, or give"),
    fault("own step", lambda net: OwnStep(net.collect_params(), "sgd"), "trainers: OwnStep ", *OWN_STEP),
    fault("replaced step", lambda net: with_own_step(net.collect_params()), "trainers: Trainer ", *OWN_STEP),
    # optimizers
    fault("several", lambda net: {
            "body": TrainerSpec("body.*", "sdg"), "heads": TrainerSpec("(digit|amount).*", clip_norm=-1)},
        "2 problems found:", '1. trainers["body"]: there is no optimizer \'sdg\' (did you mean "sgd"?)',
        '2. trainers["heads"]: clip_norm is -1'),
    fault("unknown", lambda net: TrainerSpec(ALL, "adm"),
        "trainers: there is no optimizer 'adm' (did you mean \"adam\"?); valid are"),
    fault("unknown, near one of ours", lambda net: TrainerSpec(ALL, "AdmW"),
        "there is no optimizer 'AdmW' (did you mean \"adamw\"?)"),
    fault("class", lambda net: TrainerSpec(ALL, mx.optimizer.SGD), '(did you mean "sgd"?)'),
    fault("rate twice", sgd(lr=0.1, learning_rate=0.1),
        'trainers: optimizer_params has both "learning_rate" and "lr", which are the same; leave one out'),
    fault("negative rate", sgd(learning_rate=-1), f"learning_rate is -1; {RATE}"),
    fault("negative rate by its alias", lambda net: TrainerSpec(ALL, "lion", {"lr": -1}),
        f"learning_rate is -1; {RATE}"),
    fault("beta is NaN", lambda net: TrainerSpec(ALL, "adam", {"beta1": float("nan")}),
        f"trainers: beta1 is nan; {SHARE}"),
    fault("unknown option", lambda net: TrainerSpec(ALL, "adam", {"learning_rat": 0.1}),
        "unknown option 'learning_rat' (did you mean \"learning_rate\"?); adam has \"begin_num_update\", "),
    fault("unknown option, near an alias", lambda net: TrainerSpec(ALL, "adamw", {"weigth_decay": 0.1}),
        "trainers: unknown option 'weigth_decay' (did you mean \"weight_decay\"?); adamw has"),
    fault("options are a list", lambda net: TrainerSpec(ALL, "adam", [0.1]),
        'trainers: optimizer_params is [0.1]; give a dict, such as {"learning_rate": 1e-3}'),
    fault("scheduler is a class", lambda net: TrainerSpec(ALL, lr_scheduler=mx.lr_scheduler.FactorScheduler),
        "lr_scheduler is <class 'mxnet.lr_scheduler.FactorScheduler'>; give an instance"),
    fault("scheduler twice", lambda net: TrainerSpec(ALL, "sgd", {"lr_scheduler": SCHEDULER}, SCHEDULER),
        "lr_scheduler is given twice; leave it out of optimizer_params"),
    fault("scheduler that cannot be copied", lambda net: TrainerSpec(ALL, "sgd", lr_scheduler=Locked()),
        "trainers: sgd does not take", "TypeError: cannot pickle"),
    fault("optimizer that cannot be copied", lambda net: TrainerSpec(ALL, LockedSGD()),
        "trainers: LockedSGD cannot be copied: TypeError: cannot pickle '_thread.lock' object"),
    fault("options of an object", lambda net: TrainerSpec(ALL, mx.optimizer.SGD(), {"learning_rate": 0.1}),
        "an optimizer object has its options already; give its name to set optimizer_params or "
        "lr_scheduler"),
    fault("norm of 0", lambda net: TrainerSpec(ALL, clip_norm=0),
        "clip_norm is 0; it must be a finite number above 0, or None"),
]
# fmt: on


@pytest.mark.parametrize(("trainers", "texts"), FAULTS)
def test_wrong_trainers_are_refused(setup: Setup, trainers: Any, texts: tuple) -> None:
    setup.with_trainers(trainers(setup.net)).refused(TrainerError, *texts)


# fmt: off
OPTIONS = [  # what is given besides trainers, and the message
    fault("frozen: nothing", {"trainers": {"heads": HEADS}, "frozen": ["bdy.*"]},
        'frozen: the pattern "bdy.*" selects none'),
    fault("frozen: a number", {"trainers": {"heads": HEADS}, "frozen": [3]},
        "frozen: 3 selects no parameters; give a pattern"),
    fault("frozen: all of a trainer", {"trainers": BOTH, "frozen": "body.*"},
        'trainers["body"]: everything that it selects is frozen: "body.0.weight"',
        "leave it out, or narrow frozen="),
    fault("initializer: unknown", {"initializer": "xavir"},
        "initializer: 'xavir' is not an initializer (did you mean \"xavier\"?); give an instance of one"),
    fault("initializer: pattern of nothing", {"initializer": {"encoder.*": mx.init.One()}},
        'initializer["encoder.*"]: the pattern "encoder.*" selects none of the net\'s parameters'),
    fault("initializer: no pattern", {"initializer": {3: mx.init.One()}},
        'initializer["3"]: 3 selects no parameters; give a pattern'),
    fault("initializer: unknown by pattern", {"initializer": {".*bias": "zro"}},
        'initializer[".*bias"]: \'zro\' is not an initializer (did you mean "zero"'),
]
# fmt: on


@pytest.mark.parametrize(("options", "texts"), OPTIONS)
def test_wrong_frozen_parameters_and_initializers(setup: Setup, options: Any, texts: tuple) -> None:
    setup.but(estimator=options).refused(TrainerError, *texts)


def test_what_is_frozen(setup: Setup) -> None:
    for frozen in ([setup.net.body, setup.net.digit.weight], ["body.0.*", "body.1.*"]):
        setup.with_trainers({"heads": HEADS}, frozen=frozen).trains()
    setup.with_trainers(BOTH, frozen=None).trains()
    trainer = gluon.Trainer(setup.net.collect_params(), "sgd")
    setup.with_trainers(trainer, frozen=["body.0.*"]).refused(
        TrainerError,
        'trainers: updates parameters that frozen= names: "body.0.weight", "body.0.bias"',
        "take them out of the gluon.Trainer, or give a TrainerSpec, from which frozen parameters are",
    )
    setup.with_trainers(TrainerSpec(ALL), frozen=["body.0.*"]).trains()


@pytest.mark.parametrize(
    ("frozen", "text"),
    [
        ((), 'no trainer updates "body.0.weight", "body.0.bias", so they would stay as they are'),
        (["body.0.*"], 'trainers["all"]: updates parameters that frozen= names: "body.0.weight"'),
    ],
)
def test_what_becomes_trainable_between_fits_is_checked(setup: Setup, frozen: Any, text: str) -> None:
    layer, held = setup.net.body[0].collect_params(), setup.net.collect_params()
    layer.setattr("grad_req", "null")
    if not frozen:
        held = [p for p in held.values() if p.grad_req != "null"]
    estimator = setup.with_trainers({"all": gluon.Trainer(held, "sgd")}, frozen=frozen).make()
    estimator.fit(setup.data, epochs=1)
    layer.setattr("grad_req", "write")  # other tests use the net
    for use in (partial(estimator.fit, epochs=1), estimator.check):
        before = setup.parameters()
        with pytest.raises(TrainerError) as raised:
            use(setup.data)
        assert text in str(raised.value) and not setup.moved(before)


def test_a_net_without_parameters() -> None:
    net = around(lambda dense, x: x[:, :3])
    net.net.dense.collect_params().setattr("grad_req", "null")
    net.refused(TrainerError, "trainers: the net has no parameters to train")


def test_one_optimizer_object_in_two_trainers(setup: Setup) -> None:
    """MXNet overwrites its parameters without a word; a TrainerSpec copies it."""
    one = mx.optimizer.Adam()
    body = gluon.Trainer(setup.net.body.collect_params(), one)
    heads = [*setup.net.digit.collect_params().values(), *setup.net.amount.collect_params().values()]
    text = "the trainers body and heads share one optimizer object, whose parameters and counters would mix"
    shared = {"body": body, "heads": gluon.Trainer(heads, one)}
    setup.with_trainers(shared).refused(TrainerError, text, "give each its own")
    for part in (body, TrainerSpec("body.*", one)):
        setup.with_trainers({"body": part, "heads": TrainerSpec("(digit|amount).*", one)}).trains()


class Tied(gluon.HybridBlock):
    """A decoder with the weight of the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = gluon.nn.Dense(6, in_units=6)
        self.decoder = gluon.nn.Dense(6, in_units=6, use_bias=False, params=self.encoder.params)
        self.digit = gluon.nn.Dense(3, in_units=6)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.digit(self.decoder(self.encoder(x)))


@pytest.mark.parametrize("where", ["frozen", 'initializer["decoder.*"]', 'trainers["a"]'])
def test_the_second_name_of_a_shared_parameter_leads_to_the_first(where: str) -> None:
    setup = around(lambda dense, x: dense(x)).but(net=Tied())
    option, _, _ = where.partition("[")
    value: Any = {
        "frozen": ["decoder.*"], "initializer": {"decoder.*": mx.init.One()},
        "trainers": {"a": TrainerSpec("decoder.*"), "b": TrainerSpec("digit.*|encoder.bias")},
    }[option]  # fmt: skip
    text = 'the pattern "decoder.*" matches "decoder.weight", which is another name of the shared parameter '
    way_out = '"encoder.weight"; select it by that name'
    setup.but(estimator={option: value}).refused(TrainerError, f"{where}: {text}{way_out}")
    setup.but(estimator={"frozen": ["(encoder|decoder).weight"]}).fit()


def test_what_trains_nothing_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Parameters without gradients are logged, and running statistics refused."""
    setup = around(lambda dense, x: dense(x)).but(net=Tied())
    setup.net.digit.collect_params().setattr("grad_req", "null")
    setup.net.initialize()
    with caplog.at_level("INFO", "multifit"):
        setup.with_trainers({"a": TrainerSpec("encoder.*"), "b": TrainerSpec("digit.*")}).trains()
    message = 'trainers["b"]: everything that it selects has grad_req="null": "digit.weight", "digit.bias"'
    assert caplog.text.count(f"{message}; it trains nothing until") == 1
    norm = gluon.nn.BatchNorm(scale=False, center=False, in_channels=6)
    norm.initialize()
    setup = around(lambda dense, x: dense(norm(x)))
    setup.net.norm = norm
    message = 'selects only what is not trained, such as running statistics: "norm.'
    setup.with_trainers({"a": TrainerSpec("dense.*"), "b": TrainerSpec(norm)}).refused(TrainerError, message)


# ---- optimizers --------------------------------------------------------------------------------------------


def test_optimizers_of_mxnet_and_of_users_can_be_named(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.optimizer.Optimizer, "opt_registry", dict(mx.optimizer.Optimizer.opt_registry))

    class Waving(mx.optimizer.SGD):
        def __init__(self, momentum: Any = 0.0, **options: Any) -> None:
            super().__init__(momentum=momentum(0) if callable(momentum) else momentum, **options)

    mx.optimizer.Optimizer.register(Waving)
    setup.with_trainers(TrainerSpec(ALL, "waving", {"momentum": lambda step: 0.5})).trains()
    kinds = {name: kind.__module__ for name, kind in mx.optimizer.Optimizer.opt_registry.items()}
    for name in sorted(name for name in kinds if name != "test" and not kinds[name].startswith("tests.")):
        vectors = [".*(bias|beta|gamma)"] if name == "groupadagrad" else []  # it updates matrices only
        setup.with_trainers(TrainerSpec(ALL, name), frozen=vectors).check()


def test_an_error_of_an_update_names_the_trainer(setup: Setup) -> None:
    class Own(mx.optimizer.SGD):
        def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
            raise LookupError("lost")

        update_multi_precision = update

    with pytest.raises(LookupError) as caught:
        setup.with_trainers({"mine": TrainerSpec(ALL, Own())}).fit()
    assert 'raised in trainers["mine"]' in with_notes(caught.value)


# ---- initializers ------------------------------------------------------------------------------------------


class Broken(mx.init.Initializer):
    """Fails on whatever it is to fill."""

    def _init_weight(self, name: str, array: Any) -> None:
        raise KeyError("no such table")


def test_an_initializer_that_cannot_fill_a_parameter() -> None:
    fresh = new_setup(initialized=False)
    fresh.with_trainers(None, initializer=mx.init.Bilinear()).refused(
        TrainerError, 'initializer: Bilinear cannot fill "body.0.weight" (5, 6): '
    )
    fresh.with_trainers(None, initializer=Broken()).refused(
        KeyError, "no such table", 'raised in initializer: Broken, for "body.0.weight" (5, 6)'
    )
    fresh.with_trainers(None, initializer={".*": "Xavier"}).check()
    deferred = around(lambda dense, x: dense(x)).but(estimator={"initializer": Broken()})
    deferred.net.dense = gluon.nn.Dense(3)
    where = "raised in the net's forward pass (train), called with x (8, 6) float32"
    deferred.refused(KeyError, "no such table", where)
    deferred.net.dense = gluon.nn.Dense(-3)
    text = 'net: "dense.weight" has the shape (-3, 0); give its layer sizes above 0'
    deferred.but(estimator={}).refused(SpecError, text)


# ---- devices -----------------------------------------------------------------------------------------------

CONTEXTS = {
    "no GPU": (mx.gpu(97), "context: gpu(97) does not exist: this machine has"),
    "no GPUs": ("gpu:97,98", "context: gpu(97) does not exist: this machine has"),
    "twice": ([mx.cpu(0), mx.cpu(0)], "context: cpu(0) is given twice"),
    "empty": ([], "context: the list is empty"),
    "several": ([mx.cpu(0), 3, mx.gpu(98)], "3 is not a context; gpu(98) does not exist"),
}


@pytest.mark.parametrize(("context", "text"), CONTEXTS.values(), ids=CONTEXTS)
def test_a_wrong_context_is_an_error_on_construction(setup: Setup, context: Any, text: str) -> None:
    way = "give an mx.Context or a list of different ones, such as mx.cpu(0) or [mx.gpu(0), mx.gpu(1)]"
    setup.but(estimator={"context": context}).refused(ValueError, text, way, way="make")


COMPRESSED = {"type": "2bit", "threshold": 0.5}  # meant for sums: it would give other updates than by hand


@pytest.mark.parametrize(
    ("devices", "options", "texts"),
    [
        (2, {"kvstore": None}, ["kvstore=None on 2 devices never adds up gradients, so replicas would d",
                                'use kvstore="device", or a TrainerSpec']),
        (2, {"compression_params": COMPRESSED},
            ["trainers: compression_params= has a threshold for sums", "leave it out"]),
        (1, {}, ["trainers: was built for cpu(0), but the run is on cpu(0), cpu(1)",
                 "initialise the net there before building the gluon.Trainer, or give a TrainerSpec"]),
    ],
)  # fmt: skip
def test_a_trainer_that_does_not_serve_two_devices(devices: int, options: Any, texts: list[str]) -> None:
    setup = on(devices)
    trainer = gluon.Trainer(setup.net.collect_params(), "sgd", **options)
    setup.with_trainers(trainer, context=TWO).refused(TrainerError, *texts)
    for right in (gluon.Trainer(setup.net.collect_params(), "sgd"), TrainerSpec(ALL, "sgd"))[2 - devices :]:
        setup.with_trainers(right, context=TWO).trains()
