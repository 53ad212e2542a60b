"""Settings of trainers that a run keeps: those that handlers set, optimizer objects, and schedules."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from multifit import CheckpointHandler, Every, MultiEstimator, TrainerSpec
from multifit.schedules import OneCycle, WarmUp
from tests.common.compare import assert_same_parameters, assert_unchanged, snapshot, twins
from tests.common.data import digit_batches
from tests.common.grids import plain_or_hybrid
from tests.common.hand_loop import SILENT, train_by_hand
from tests.common.handlers import CutsPower, PowerCut, handler
from tests.common.nets import hybridized
from tests.common.shared_nets import two_heads, two_losses
from tests.common.specs import digit_spec

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip

BATCHES = digit_batches([12, 7, 12])
EPOCHS = 3


def multiply(parameters: Any, **multipliers: float) -> None:
    for name, parameter in parameters.items():
        if name.startswith("body"):
            for multiplier, value in multipliers.items():
                setattr(parameter, multiplier, value)


# what handlers set, on the estimator, and options with which it has an effect
SETTINGS: dict[str, tuple[Callable[[Any], object], dict[str, Any]]] = {
    "lr_mult": (lambda e: multiply(e.parameters, lr_mult=0.1), {}),
    "wd_mult": (lambda e: multiply(e.parameters, wd_mult=0.0), {"wd": 0.1}),
    "rate": (lambda e: setattr(e.trainers["trainer"], "learning_rate", 1e-4), {}),
    "decay": (lambda e: setattr(e.trainers["trainer"], "weight_decay", 0.5), {}),
    "clip_gradient": (lambda e: setattr(e.trainers["trainer"].optimizer, "clip_gradient", 1e-3), {}),
    "epsilon": (lambda e: setattr(e.trainers["trainer"].optimizer, "epsilon", 1e-2), {}),
    "scale": (lambda e: setattr(e.trainers["trainer"].trainer, "_scale", 0.5), {"wd": 0.1}),
}


@pytest.mark.parametrize(("name", "schedule"), [(name, bool(i % 2)) for i, name in enumerate(SETTINGS)])
def test_what_a_handler_sets_is_resumed(name: str, schedule: bool, tmp_path: Path) -> None:
    """It is set at the end of the first epoch, and the run ends in the second."""
    change, options = SETTINGS[name]
    if schedule:
        options = {**options, "lr_scheduler": mx.lr_scheduler.PolyScheduler(20, base_lr=0.01)}

    def fit(net: Any, *handlers: Any, settings: Any = change, **resume: Any) -> None:
        sets = handler(epoch_end=lambda e, **_: settings(e) if e.state.epoch == 0 else None)
        estimator = MultiEstimator(net, digit_spec(), TrainerSpec(".*", "adam", options))
        estimator.fit(BATCHES, epochs=EPOCHS, event_handlers=[*SILENT, sets, *handlers], **resume)

    ends = []
    for case in ("unchanged", "whole", "resumed"):
        mx.random.seed(1)
        net = twins(two_heads, BATCHES[0][0])[0]
        saving = CheckpointHandler(tmp_path / case, Every(4, "batch"))
        if case == "resumed":
            with pytest.raises(PowerCut):
                fit(net, saving, CutsPower(4))
            net = two_heads()  # with the multipliers that a new net has
            fit(net, saving, resume=tmp_path / case)
        else:
            fit(net, saving, settings=change if case == "whole" else lambda estimator: None)
        ends.append(net)
    assert_unchanged(ends[2], snapshot(ends[1]))
    with pytest.raises(AssertionError):
        assert_same_parameters(ends[0], ends[1])


@plain_or_hybrid
def test_an_optimizer_object_is_copied(hybrid: bool) -> None:
    """Each trainer, and each estimator of a k-fold cross-validation, begins with the counts of the object."""
    optimizer = mx.optimizer.Adam(learning_rate=0.01)
    for _ in range(2):
        hand, net = twins(two_heads, BATCHES[0][0])
        trainer = gluon.Trainer(hand.collect_params(), mx.optimizer.Adam(learning_rate=0.01))
        train_by_hand(hand, trainer, BATCHES, two_losses)
        trainers = {"body": TrainerSpec("body.*", optimizer), "heads": TrainerSpec("(?!body).*", optimizer)}
        estimator = MultiEstimator(hybridized(net, hybrid), digit_spec(), trainers)
        estimator.fit(BATCHES, epochs=1, event_handlers=SILENT)
        assert_same_parameters(net, hand)
    assert optimizer.num_update == 0 and not optimizer.param_dict


def constant(update: int) -> float:
    return 0.02 / (1 + update)


constant.base_lr = 0.02  # type: ignore[attr-defined]

schedulers = mx.lr_scheduler
WARM = {"warmup_steps": 3, "warmup_begin_lr": 0.001}
# with a base rate
SCHEDULES: dict[str, Callable[[float], Any]] = {
    "factor": lambda rate: schedulers.FactorScheduler(2, 0.5, base_lr=rate),
    "factor, warm": lambda rate: schedulers.FactorScheduler(4, 0.5, base_lr=rate, **WARM),
    "several factors": lambda rate: schedulers.MultiFactorScheduler([2, 5], 0.3, base_lr=rate, **WARM),
    "poly": lambda rate: schedulers.PolyScheduler(8, base_lr=rate, final_lr=0.001),
    "poly, warm": lambda rate: schedulers.PolyScheduler(8, base_lr=rate, final_lr=0.001, **WARM),
    "cosine": lambda rate: schedulers.CosineScheduler(8, base_lr=rate, final_lr=0.001),
    "cosine, warm": lambda rate: schedulers.CosineScheduler(8, base_lr=rate, final_lr=0.001, **WARM),
    "one cycle": lambda rate: OneCycle(rate, 8),
    "warm up": lambda rate: WarmUp(schedulers.CosineScheduler(6, base_lr=rate), 3, start=0.001),
    "warm up of one cycle": lambda rate: WarmUp(OneCycle(rate, 6), 3),
    "a function": lambda rate: Proportional(rate),
}


class Proportional(schedulers.LRScheduler):
    """What the function is to be with another base rate."""

    def __call__(self, update: int) -> float:
        return constant(update) * self.base_lr / 0.02


@pytest.mark.parametrize(("name", "as_option"), [(name, bool(i % 2)) for i, name in enumerate(SCHEDULES)])
def test_the_learning_rate_replaces_a_schedules_base_rate(name: str, as_option: bool) -> None:
    make, rate = SCHEDULES[name], 0.1
    declared = constant if name == "a function" else make(0.02)
    before = copy.deepcopy(vars(declared))
    options: dict[str, Any] = {"learning_rate": rate, **({"lr_scheduler": declared} if as_option else {})}
    spec = TrainerSpec(".*", "sgd", options, lr_scheduler=None if as_option else declared)
    hand, net = twins(two_heads, BATCHES[0][0])
    expected, rates = make(rate), []
    saves = handler(batch_end=lambda e, **_: rates.append(e.trainers["trainer"].learning_rate))
    estimator = MultiEstimator(net, digit_spec(), spec)
    estimator.fit(BATCHES, epochs=EPOCHS, event_handlers=[*SILENT, saves])
    assert rates == pytest.approx([expected(update) for update in range(1, 10)], rel=1e-12)
    assert estimator.trainers["trainer"].optimizer.lr_scheduler.base_lr == pytest.approx(expected.base_lr)
    trainer = gluon.Trainer(hand.collect_params(), "sgd", {"lr_scheduler": make(rate)})
    train_by_hand(hand, trainer, BATCHES * EPOCHS, two_losses)
    assert_same_parameters(net, hand)
    comparable = lambda attributes: {k: v for k, v in attributes.items() if k != "scheduler"}  # noqa: E731
    assert comparable(vars(declared)) == comparable(before)


@pytest.mark.parametrize("name", ["factor, warm", "one cycle", "warm up of one cycle"])
def test_without_a_learning_rate_a_schedule_keeps_its_own(name: str) -> None:
    schedule, rates = SCHEDULES[name](0.02), []
    saves = handler(batch_end=lambda e, **_: rates.append(e.trainers["trainer"].learning_rate))
    net = twins(two_heads, BATCHES[0][0])[0]
    estimator = MultiEstimator(net, digit_spec(), TrainerSpec(".*", "adam", lr_scheduler=schedule))
    estimator.fit(BATCHES, epochs=EPOCHS, event_handlers=[*SILENT, saves])
    assert rates == pytest.approx([schedule(update) for update in range(1, 10)], rel=1e-12)


def test_an_optimizer_object_trains_at_the_rates_of_its_own_loop() -> None:
    """What the object was created with is its own: also where MXNet prefers one of two rates."""

    def optimizer() -> Any:
        return mx.optimizer.SGD(learning_rate=0.1, lr_scheduler=SCHEDULES["cosine, warm"](0.02))

    hand, net = twins(two_heads, BATCHES[0][0])
    train_by_hand(hand, gluon.Trainer(hand.collect_params(), optimizer()), BATCHES * EPOCHS, two_losses)
    estimator = MultiEstimator(net, digit_spec(), TrainerSpec(".*", optimizer()))
    estimator.fit(BATCHES, epochs=EPOCHS, event_handlers=SILENT)
    assert_same_parameters(net, hand)
