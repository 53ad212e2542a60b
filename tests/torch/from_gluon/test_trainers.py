"""Trainers of Gluon nets: twenty updates in a loop written by hand are those of gluon.Trainer."""

import copy
import re
from typing import Any

import numpy as np
import pytest
import torch

from multifit import TaskSpec, TrainerError, TrainerSpec
from multifit.gluon.compat import mx
from multifit.schedules import OneCycle
from multifit.torch.from_gluon.optimizer import MXNetOptimizer
from multifit.torch.optimizers import build_trainer
from tests.common.nets import sequential
from tests.torch.from_gluon.bridges import assert_same, bridged
from tests.torch.from_gluon.optim.test_rules import cast

nn = mx.gluon.nn
SPEC = TaskSpec(outputs=["y"], labels=["y"], losses={"y": mx.gluon.loss.L2Loss()})
STEPS = 20
R = np.random.RandomState(0)
XS, YS = R.randn(STEPS, 6, 4), R.randn(STEPS, 6, 2)


def make_net() -> Any:
    net = sequential(nn.Dense(5, in_units=4, activation="tanh"), nn.Dense(2, in_units=5))
    net.cast("float64")
    mx.random.seed(3)
    net.initialize(mx.init.Xavier())
    net[0].weight.lr_mult, net[0].bias.wd_mult, net[1].weight.wd_mult = 0.5, 0.0, 2.0
    return net


def of_gluon(optimizer: Any, options: dict[str, Any], steps: int = STEPS) -> Any:
    net, options = make_net(), copy.deepcopy(options)
    parameters = list(net.collect_params().values())
    trainer = mx.gluon.Trainer(parameters, optimizer, options, update_on_kvstore=False)
    for i, parameter in enumerate(parameters):  # of which MXNet makes some in float32
        trainer._updaters[0].states[i] = cast(trainer.optimizer.create_state(i, parameter.data()), "float64")
        trainer._updaters[0].states_synced[i] = True
    run_gluon(net, trainer, range(steps))
    return net, trainer


def run_gluon(net: Any, trainer: Any, steps: Any) -> None:
    for step in steps:
        x, y = (mx.nd.array(each[step], dtype="float64") for each in (XS, YS))
        with mx.autograd.record():
            loss = mx.gluon.loss.L2Loss()(net(x), y).mean()
        loss.backward()
        trainer.step(1)


def run_torch(setup: Any, handle: Any, steps: Any = range(STEPS)) -> None:
    for step in steps:
        handle.optimizer.zero_grad()
        loss = (
            setup.spec.terms[0]
            .spec.fn(setup.net(torch.from_numpy(XS[step])), torch.from_numpy(YS[step]))
            .mean()
        )
        loss.backward()
        handle.update()


def handle_of(setup: Any) -> Any:
    chosen = [p for n, p in setup.net.named_parameters() if re.fullmatch(setup.trainers.params, n)]
    handle, problems = build_trainer("all", "trainers", setup.trainers, chosen, fused=True)
    assert not problems
    return handle


def values(net: Any) -> dict[str, np.ndarray]:
    return {name: each.data().asnumpy() for name, each in net._collect_params_with_prefix().items()}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("adadelta", "adagrad", "adam", "adamw", "lamb")},
    **{name: (name, {}) for name in ("lion", "nag", "radam", "rmsprop", "sgd")},
    "sgd with all": ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01, "clip_gradient": 0.2}),
    "adam with all": ("adam", {"learning_rate": 0.1, "beta1": 0.8, "wd": 0.01, "rescale_grad": 0.5}),
    "rmsprop, centered": ("rmsprop", {"centered": True, "clip_weights": 0.5}),
    "a factor": ("sgd", {"lr_scheduler": mx.lr_scheduler.FactorScheduler(3, 0.5, base_lr=0.2)}),
    "steps": (
        "adam",
        {"lr_scheduler": mx.lr_scheduler.MultiFactorScheduler([2, 9], 0.1), "learning_rate": 0.05},
    ),
    "a cosine": ("nag", {"lr_scheduler": mx.lr_scheduler.CosineScheduler(15, 0.1, warmup_steps=3)}),
}


@pytest.mark.parametrize("name", CASES)
def test_twenty_updates(name: str):
    optimizer, options = CASES[name]
    net = make_net()
    setup, bridge = bridged(net, SPEC, TrainerSpec(".*", optimizer, options))
    assert setup.trainers.optimizer.__name__.lower() == optimizer
    run_torch(setup, handle_of(setup))
    bridge.write_back()
    assert_same(values(net), values(of_gluon(optimizer, options)[0]), 1e-6)


def test_a_trainer_goes_on_with_its_counts_and_is_left_alone():
    net, trainer = make_net(), None
    trainer = mx.gluon.Trainer(
        net[1].collect_params(), "adamw", {"learning_rate": 0.1}, update_on_kvstore=False
    )
    setup, _ = bridged(net, SPEC, trainer, frozen=[net[0]])
    assert setup.frozen == ["0.bias", "0.weight"] and setup.trainers.params == r"1\.weight|1\.bias"
    handle = handle_of(setup)
    run_torch(setup, handle, range(2))
    assert trainer.optimizer.num_update == 0
    state = handle.optimizer.state[setup.net.get_parameter("1.weight")]
    assert state["step"] == 2 and state["0"].shape == (2, 5)
    used = mx.optimizer.Adam(learning_rate=0.1)
    used._update_count([0, 1, 2, 3])
    handle = handle_of(bridged(net, SPEC, TrainerSpec(net, used))[0])
    run_torch(setup, handle, [])
    for each in handle.optimizer.param_groups[0]["params"]:
        each.grad = torch.ones_like(each)
    handle.update()
    assert {each["step"] for each in handle.optimizer.state.values()} == {2}


@pytest.mark.parametrize(
    ("optimizer", "options"), [("adam", {}), ("sgd", {"momentum": 0.9}), ("adagrad", {})]
)
def test_a_trainer_that_has_updated_goes_on(optimizer: str, options: dict[str, Any]):
    net, trainer = of_gluon(optimizer, options, 7)
    setup, bridge = bridged(net, SPEC, trainer)
    expected, reference = of_gluon(optimizer, options, 7)
    run_torch(setup, handle_of(setup), range(7, STEPS))
    bridge.write_back()
    run_gluon(expected, reference, range(7, STEPS))
    assert_same(values(net), values(expected), 1e-6)


def test_controls_and_states():
    setup, _ = bridged(make_net(), SPEC, TrainerSpec(".*", "sgd", {"lr": 0.1, "wd": 0.01}))
    handle = handle_of(setup)
    assert (handle.learning_rate, handle.weight_decay, handle.momentum) == (0.1, 0.01, 0.0)
    run_torch(setup, handle, range(2))
    handle.momentum = 0.9
    run_torch(setup, handle, range(2))
    assert all("0" in each for each in handle.optimizer.state.values())
    adam = handle_of(bridged(make_net(), SPEC, TrainerSpec(".*", "adam", {"beta1": 0.8}))[0])
    assert adam.momentum == 0.8
    one, other = (bridged(make_net(), SPEC, TrainerSpec(".*", "adam"))[0] for _ in range(2))
    first, second = handle_of(one), handle_of(other)
    run_torch(one, first, range(3))
    other.net.load_state_dict(one.net.state_dict())
    second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    for setup, handle in ((one, first), (other, second)):
        run_torch(setup, handle, range(3, 6))
    assert all(torch.equal(*pair) for pair in zip(one.net.parameters(), other.net.parameters()))


def test_a_closure_and_several_dtypes():
    parameters = [torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.float64, requires_grad=True)]

    def closure() -> Any:
        loss = sum(each.sum().double() for each in parameters)
        loss.backward()
        return loss

    net_weight = mx.gluon.Parameter("weight", shape=(2,))
    optimizer = MXNetOptimizer(parameters, mx.optimizer.SGD(learning_rate=1.0), lambda each: net_weight, {})
    assert optimizer.step(closure).item() == 4
    assert [each.tolist() for each in parameters] == [[0, 0], [0, 0]]


def test_the_default_and_several_by_name():
    setup, _ = bridged(make_net(), SPEC)
    assert setup.trainers.params == ".*" and setup.trainers.optimizer.__name__ == "Adam"
    both = {
        "body": TrainerSpec("0.*", "sgd", clip_norm=1.0, every=2),
        "head": TrainerSpec(make_net()[1].weight),
    }
    net = make_net()
    both["head"] = TrainerSpec(net[1].collect_params(), lr_scheduler=OneCycle(0.1, 10))
    trainers = bridged(net, SPEC, both)[0].trainers
    assert (trainers["body"].clip_norm, trainers["body"].every) == (1.0, 2)
    assert trainers["head"].lr_scheduler.base_lr == 0.1


@mx.optimizer.register
class Unknown(mx.optimizer.SGD):
    """An optimizer of the user's own."""


def foreign_trainer(net: Any) -> Any:
    other = nn.Dense(2, in_units=2)
    other.initialize()
    return mx.gluon.Trainer(other.collect_params(), "sgd")


REFUSED = {
    "no rule": (
        lambda net: TrainerSpec(".*", "unknown"),
        "trainers: Unknown has no translation .supported are",
    ),
    "no name": (lambda net: TrainerSpec(".*", "adm"), r"there is no optimizer 'adm' \(did you mean .adam."),
    "an option": (lambda net: TrainerSpec(".*", "sgd", {"momentun": 0.9}), "unknown option"),
    "another net": (lambda net: TrainerSpec(make_net()), "selects none of the net's parameters"),
    "foreign": (foreign_trainer, "holds parameters that the net does not have"),
}


def test_what_is_no_trainer_is_left_to_the_engine():
    assert bridged(make_net(), SPEC, 3)[0].trainers == 3


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_valid_is_refused(name: str):
    declare, message = REFUSED[name]
    net = make_net()
    with pytest.raises(TrainerError, match=message):
        bridged(net, SPEC, declare(net))
