"""TrainerHandle: setting a control equals building the optimizer with it."""

import copy
from typing import Any

import numpy as np
import pytest

from multifit import TrainerError
from multifit.gluon.optim.handle import TrainerHandle
from multifit.schedules import ScaledSchedule
from tests.common.grids import ONE, TWO

import mxnet as mx  # isort: skip

SLOPE = np.array([[2.0, -1.0, 0.5], [-3.0, 1.0, 0.2]])
TURN = np.array([[1.0, 2.0, 3.0], [0.5, 2.5, 0.8]])  # so that gradients change their directions and signs
LACK_MOMENTUM = {"adadelta", "adagrad", "ftrl", "groupadagrad", "rmsprop", "sgld", "test"}
HAVE_BETAS = {"adam", "nadam"}
REGISTRY = mx.optimizer.Optimizer.opt_registry
STOCK = sorted(name for name, kind in REGISTRY.items() if kind.__module__.startswith("mxnet."))
CONTROLS = {"learning_rate": "learning_rate", "weight_decay": "wd", "momentum": "momentum"}


def handle(optimizer: Any = "sgd", contexts: Any = None, **options: Any) -> Any:
    """Return the handle of a trainer of one parameter."""
    parameter = mx.gluon.Parameter("w", shape=(2, 3))
    parameter.initialize(ctx=contexts or ONE)
    parameter.set_data(mx.nd.array([[-1.0, 0.5, 2.0], [0.3, -0.7, 1.5]]))
    trainer = mx.gluon.Trainer([parameter], optimizer, options, update_on_kvstore=False)
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


@pytest.mark.parametrize("name", ["adam", "lars", "lbsgd", "nadam", "rmsprop", "sgd"])
def test_setting_equals_building_with(name: str) -> None:
    """Each kind of momentum and mean is here; those of MXNet's other optimizers are the same."""
    plain = step(handle(name), 5)
    for control, option in CONTROLS.items():
        one = handle(name)
        if control == "momentum" and name in LACK_MOMENTUM:
            continue
        setattr(one, control, 0.25)
        assert getattr(one, control) == 0.25
        option = "beta1" if control == "momentum" and name in HAVE_BETAS else option
        built = step(handle(name, **{option: 0.25}), 5)
        np.testing.assert_array_equal(step(one, 5), built)
        assert not np.array_equal(built, plain), control


@pytest.mark.parametrize("name", ["sgd", "lars", "lbsgd"])
def test_momentum_raised_from_0_starts_with_an_empty_mean(name: str) -> None:
    one, rest = handle(name, TWO, momentum=0.0), handle(name, TWO, momentum=0.5)
    step(one, 2)
    rest._params[0].set_data(one._params[0].data(TWO[0]))
    if name == "lars":  # which corrects its momentum by the ratio of rates; the first step has none
        rest.optimizer.last_lr = one.optimizer.last_lr
    if name == "lbsgd":
        rest.optimizer.cumgrads = dict(one.optimizer.cumgrads)
    one.momentum = 0.5
    np.testing.assert_allclose(step(one, 3), step(rest, 3), rtol=1e-6)


def test_controls_take_effect_within_a_run() -> None:
    one = handle("sgd", TWO, learning_rate=1.0)
    before = step(one)
    one.learning_rate, one.weight_decay = 0.5, 2.0
    np.testing.assert_allclose(step(one), before - 0.5 * (2 * SLOPE + 2.0 * before), rtol=1e-5)


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
    one.set_learning_rate(0.125)  # as gluon.Trainer's, which cannot do so during a schedule
    assert one.learning_rate == 0.125


def test_a_handle_acts_as_its_trainer(tmp_path: Any) -> None:
    one, other = handle("adam"), handle("adam")
    assert copy.copy(one).optimizer is one.trainer.optimizer
    step(one, 3)
    one.save_states(str(tmp_path / "states"))
    other.load_states(str(tmp_path / "states"))
    assert other.optimizer.num_update == one.optimizer.num_update == 3
    for call in (lambda: setattr(one, "learning_rat", 0.5), lambda: one.learning_rat):
        with pytest.raises(AttributeError, match="learning_rat"):
            call()
    assert repr(handle("adagrad")) == 'TrainerHandle("body", AdaGrad: learning_rate=0.01, weight_decay=0.0)'


def test_controls_that_lack_and_values_that_are_wrong() -> None:
    for name in STOCK:
        one = handle(name)
        assert (one.learning_rate is None) == (name == "adadelta")
        assert (one.momentum is None) == (name in LACK_MOMENTUM)
    message = r'trainers\["body"\].momentum: RMSProp has none; it has "learning_rate", "weight_decay"'
    with pytest.raises(TrainerError, match=message):
        handle("rmsprop").momentum = 0.5
    one = handle("adam")
    for control in CONTROLS:
        before = getattr(one, control)
        message = rf'trainers\["body"\].{control} is .*; valid is a finite number of at least 0'
        for value in (-0.1, float("nan"), "0.1", None, True):
            with pytest.raises(ValueError, match=message):
                setattr(one, control, value)
        assert getattr(one, control) == before
    with pytest.raises(ValueError, match="at least 0 and below 1"):
        one.momentum = 1.0
