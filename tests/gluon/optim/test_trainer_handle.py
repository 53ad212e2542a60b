"""TrainerHandle: setting a control equals building the optimizer with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import TrainerError
from multifit.gluon.optim.schedules import ScaledSchedule
from multifit.gluon.optim.trainer_handle import TrainerHandle
from tests.common.grids import ONE, TWO

import mxnet as mx  # isort: skip

SLOPE = np.array([[2.0, -1.0, 0.5], [-3.0, 1.0, 0.2]])
TURN = np.array([[1.0, 2.0, 3.0], [0.5, 2.5, 0.8]])  # so that gradients change their directions and signs
LACK_MOMENTUM = {"adadelta", "adagrad", "ftrl", "groupadagrad", "rmsprop", "sgld", "test"}
HAVE_BETAS = {"adam", "adamax", "ftml", "lamb", "nadam"}
REGISTRY = mx.optimizer.Optimizer.opt_registry
STOCK = sorted(name for name, kind in REGISTRY.items() if kind.__module__.startswith("mxnet."))
# "test" decides nothing by its options; sgld adds noise; dcasgd's own momentum does not work in MXNet
REPEATABLE = [name for name in STOCK if name not in ("test", "sgld")]


def handle(optimizer: Any = "sgd", contexts: Any = None, on_kvstore: bool = False, **options: Any) -> Any:
    """Return the handle of a trainer of one parameter."""
    parameter = mx.gluon.Parameter("w", shape=(2, 3))
    parameter.initialize(ctx=contexts or ONE)
    parameter.set_data(mx.nd.array([[-1.0, 0.5, 2.0], [0.3, -0.7, 1.5]]))
    # a kvstore by name would be left out where there is one device
    kvstore = mx.kv.create("device") if on_kvstore else "device"
    trainer = mx.gluon.Trainer([parameter], optimizer, options, kvstore, update_on_kvstore=on_kvstore)
    return TrainerHandle("body", trainer)


def step(handle: Any, times: int = 1) -> np.ndarray:
    """Make steps with the same gradient on each device, and return the first device's weights."""
    (parameter,) = handle._params
    for time in range(times):
        slope = mx.nd.array(SLOPE * np.cos(time * TURN))
        with mx.autograd.record():
            loss = [(slope.as_in_context(d.context) * d).sum() for d in parameter.list_data()]
        mx.autograd.backward(loss)
        handle.step(1)
    return parameter.list_data()[0].asnumpy()


@pytest.mark.parametrize("name", STOCK)
def test_the_controls_of_each_optimizer(name: str) -> None:
    one = handle(name)
    assert one.learning_rate > 0
    assert (one.weight_decay is None) == (name == "groupadagrad")
    assert (one.momentum is None) == (name in LACK_MOMENTUM)
    assert (one.betas is None) == (name not in HAVE_BETAS)
    if one.betas is not None:
        assert one.betas == (one.optimizer.beta1, one.optimizer.beta2)
    has = {name for name in ("weight_decay", "momentum", "betas") if getattr(one, name) is not None}
    assert set(one.settable) == has | ({"learning_rate"} if name != "adadelta" else set())


CONTROLS = [
    ("learning_rate", 0.25, {"learning_rate": 0.25}),
    ("weight_decay", 0.5, {"wd": 0.5}),
    ("momentum", 0.5, {"momentum": 0.5}),
    ("betas", (0.5, 0.75), {"beta1": 0.5, "beta2": 0.75}),
]


@pytest.mark.parametrize("name", REPEATABLE)
def test_setting_equals_building_with(name: str) -> None:
    plain = step(handle(name), 5)
    for control, value, options in CONTROLS:
        one = handle(name)
        if control not in one.settable or (name, control) == ("dcasgd", "momentum"):
            with pytest.raises(TrainerError):
                setattr(one, control, value)
            continue
        setattr(one, control, value)
        assert getattr(one, control) == value
        if control == "momentum" and name in HAVE_BETAS:
            options = {"beta1": value}
        built = step(handle(name, **options), 5)
        np.testing.assert_array_equal(step(one, 5), built)
        assert not np.array_equal(built, plain), control


def test_the_momentum_of_a_centered_rmsprop() -> None:
    one = handle("rmsprop", centered=True)
    one.momentum = 0.5
    assert one.momentum == one.optimizer.gamma2 == 0.5
    np.testing.assert_array_equal(step(one, 3), step(handle("rmsprop", centered=True, gamma2=0.5), 3))


@pytest.mark.parametrize("name", ["sgd", "nag", "signum", "lars", "lbsgd"])
@pytest.mark.parametrize(("on_kvstore", "contexts"), [(False, TWO), (True, ONE)])
def test_momentum_raised_from_0_starts_with_an_empty_mean(name: str, on_kvstore: bool, contexts: Any) -> None:
    one = handle(name, contexts, on_kvstore, momentum=0.0)
    step(one, 2)
    for _ in range(2):  # the second time there are old states, and a clean start all the same
        before = one._params[0].data(contexts[0])
        rest = handle(name, contexts, on_kvstore, momentum=0.5)
        rest._params[0].set_data(before)
        if name == "lars":  # which corrects its momentum by the ratio of rates; the first step has none
            rest.optimizer.last_lr = one.optimizer.last_lr
        if name == "lbsgd":
            rest.optimizer.cumgrads = dict(one.optimizer.cumgrads)
        one.momentum = 0.5
        np.testing.assert_allclose(step(one, 3), step(rest, 3), rtol=1e-6)
        one.momentum = 0.0
        step(one)
    for replica in one._params[0].list_data():
        np.testing.assert_array_equal(replica.asnumpy(), one._params[0].data(contexts[0]).asnumpy())


def test_changed_momentum_keeps_its_states() -> None:
    one, other = handle(momentum=0.9), handle(momentum=0.9)
    step(one), step(other)
    one.momentum = other.optimizer.momentum = 0.5
    np.testing.assert_array_equal(step(one, 2), step(other, 2))


def test_a_user_defined_optimizer_keeps_its_states() -> None:
    class Mine(mx.optimizer.SGD):
        """Counts in its states."""

        def create_state(self, index: int, weight: Any) -> Any:
            return None if index else [0]

        def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
            self._update_count(index)

        update_multi_precision = update

    one = TrainerHandle("mine", handle(Mine()).trainer)
    step(one)
    (updater,) = one._updaters
    updater.states[1] = None
    one.momentum = 0.5
    assert updater.states == {0: [0]}


@pytest.mark.parametrize(("on_kvstore", "contexts"), [(False, ONE), (True, TWO)])
def test_controls_take_effect_within_a_run(on_kvstore: bool, contexts: Any) -> None:
    one = handle("sgd", contexts, on_kvstore, learning_rate=1.0)
    before = step(one)
    one.learning_rate = 0.125
    after = step(one)
    np.testing.assert_allclose(before - after, 0.125 * len(contexts) * SLOPE, rtol=1e-5)
    one.learning_rate, one.weight_decay = 0.5, 2.0
    np.testing.assert_allclose(step(one), after - 0.5 * (len(contexts) * SLOPE + 2.0 * after), rtol=1e-5)


def test_setting_the_rate_scales_the_schedule() -> None:
    own = mx.lr_scheduler.CosineScheduler(20, base_lr=1.0)
    one = handle("sgd", lr_scheduler=mx.lr_scheduler.CosineScheduler(20, base_lr=1.0))
    step(one, 4)
    assert one.learning_rate == own(4)
    one.learning_rate = one.learning_rate  # no change
    assert not isinstance(one.optimizer.lr_scheduler, ScaledSchedule)
    for rate in (0.3, 0.0, 0.7):  # a rate of 0 can be left again
        one.learning_rate = rate
        assert one.learning_rate == rate
    before = step(one)
    assert one.learning_rate == pytest.approx(0.7 * own(5) / own(4), rel=1e-12)
    after = step(one)
    np.testing.assert_allclose(before - after, 0.7 * own(6) / own(4) * SLOPE, rtol=1e-5)
    assert not isinstance(one.optimizer.lr_scheduler.scheduler, ScaledSchedule)  # it does not pile up
    one.reset_schedule()
    assert one.learning_rate == own(6)
    one.reset_schedule()
    assert one.learning_rate == own(6)


def test_set_learning_rate_works_with_a_schedule_too() -> None:
    one = handle("sgd", lr_scheduler=mx.lr_scheduler.FactorScheduler(100, base_lr=1.0))
    one.set_learning_rate(0.125)
    assert one.learning_rate == 0.125


def test_a_handle_acts_as_its_trainer() -> None:
    one = handle()
    assert isinstance(one, mx.gluon.Trainer) and isinstance(one, TrainerHandle)
    assert one.optimizer is one.trainer.optimizer
    assert one == one.trainer == one == TrainerHandle("other", one.trainer) != handle()
    assert {one.trainer: 1}[one] == 1
    one._scale = 3.0
    assert one.trainer._scale == 3.0 and "_scale" not in vars(one)
    with pytest.raises(AttributeError, match="learning_rat"):
        one.learning_rat  # noqa: B018
    with pytest.raises(AttributeError, match="trainer"):
        TrainerHandle.__new__(TrainerHandle).anything  # noqa: B018
    assert repr(handle("adagrad")) == ('TrainerHandle("body", AdaGrad: learning_rate=0.01, weight_decay=0.0)')


@pytest.mark.parametrize(
    ("optimizer", "control", "message"),
    [
        ("sgd", "betas", 'SGD has none; it has "learning_rate", "weight_decay", "momentum"'),
        ("ftrl", "momentum", 'Ftrl has none; it has "learning_rate", "weight_decay"'),
        ("rmsprop", "momentum", 'RMSProp has none; it has "learning_rate", "weight_decay"'),
        ("adadelta", "learning_rate", 'AdaDelta has none; it has "weight_decay"'),
        ("groupadagrad", "weight_decay", 'GroupAdaGrad has none; it has "learning_rate"'),
    ],
)
def test_a_missing_control_is_an_error(optimizer: str, control: str, message: str) -> None:
    with pytest.raises(TrainerError) as caught:
        setattr(handle(optimizer), control, (0.5, 0.5) if control == "betas" else 0.5)
    assert caught.value.problems[0].message == f'trainers["body"].{control}: {message}'


def test_a_momentum_that_breaks_the_optimizer_is_an_error() -> None:
    one = handle("dcasgd")
    step(one)
    with pytest.raises(TrainerError, match='trainers\\["body"\\]: dcasgd cannot make a step'):
        one.momentum = 0.5
    assert one.momentum == 0
    step(one)


@pytest.mark.parametrize("control", ["learning_rate", "weight_decay", "momentum"])
def test_invalid_values_are_errors(control: str) -> None:
    one = handle()
    before = getattr(one, control)
    message = rf'trainers\["body"\].{control} is .*; valid is a finite number of'
    for value in (-0.1, float("nan"), float("inf"), "0.1", None, True, [0.1]):
        with pytest.raises(ValueError, match=message):
            setattr(one, control, value)
    assert getattr(one, control) == before


def test_invalid_betas_are_errors() -> None:
    one = handle("adam")
    for pair in ((0.9,), (0.9, 0.99, 0.9), 0.9, "ab", None, (0.9, 1.0), (-0.1, 0.9), (0.9, "x")):
        with pytest.raises(ValueError, match=r'trainers\["body"\].betas is .*; valid'):
            one.betas = pair
    assert one.betas == (0.9, 0.999)
    with pytest.raises(ValueError, match="at least 0 and below 1"):
        one.momentum = 1.0


def test_setting_a_control_is_an_error_if_servers_update() -> None:
    one = handle()
    one._distributed = one._update_on_kvstore = True
    message = r"learning_rate cannot be set any more: the servers .* copies of SGD"
    with pytest.raises(TrainerError, match=message):
        one.learning_rate = 0.5
