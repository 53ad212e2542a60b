"""Settings of trainers that a run keeps, schedules, and which losses reach which of several trainers."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from multifit import CheckpointHandler, Every, LossSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.schedules import OneCycle, WarmUp
from tests.common import nets
from tests.common.compare import assert_same_parameters, copy_parameters, snapshot, twins
from tests.common.data import digit_batches, in_batches, two_head_arrays
from tests.common.grids import ONE, TWO, plain_or_hybrid
from tests.common.hand_loop import SILENT, train, train_by_hand
from tests.common.handlers import handler
from tests.common.nets import hybridized
from tests.common.resuming import assert_resumes_bit_for_bit
from tests.common.shared_nets import two_heads, two_losses
from tests.common.specs import CE, L2, digit_spec, two_head_spec

BATCHES = digit_batches([12, 7, 12])
EPOCHS = 3


def set_all(estimator: Any) -> None:
    """Change all that a handler can set of a trainer, each so much that it changes the next updates."""
    for name, parameter in estimator.parameters.items():
        if name.startswith("body"):
            parameter.lr_mult, parameter.wd_mult = 0.3, 0.5
    trainer = estimator.trainers["trainer"]
    trainer.learning_rate, trainer.weight_decay = 2e-3, 0.5
    trainer.optimizer.clip_gradient, trainer.optimizer.epsilon = 0.05, 1e-4
    trainer.trainer._scale = 0.5


@pytest.mark.parametrize("schedule", [None, mx.lr_scheduler.PolyScheduler(20, base_lr=0.01)])
def test_what_a_handler_sets_is_resumed(schedule: Any, tmp_path: Path) -> None:
    """It is set at the end of the first epoch, and the run ends in the second."""
    start = twins(two_heads, BATCHES[0][0])[0]

    def run(folder: Path, *handlers: Any, **options: Any) -> MultiEstimator:
        net = twins(two_heads, BATCHES[0][0])[0]  # with the multipliers that a new net has
        copy_parameters(start, net)
        sets = handler(epoch_end=lambda e, **_: set_all(e) if e.state.epoch == 0 else None)
        trainer = TrainerSpec(".*", "adam", {"lr_scheduler": schedule} if schedule else {})
        estimator = MultiEstimator(net, digit_spec(), trainer)
        saving = CheckpointHandler(folder, Every(4, "batch"))
        estimator.fit(BATCHES, epochs=EPOCHS, event_handlers=[*SILENT, sets, saving, *handlers], **options)
        return estimator

    assert_resumes_bit_for_bit(run, tmp_path, 4)


@plain_or_hybrid
def test_an_optimizer_object_is_copied(hybrid: bool) -> None:
    """Each trainer, and each estimator of a k-fold cross-validation, begins with the counts of the object."""
    optimizer = mx.optimizer.Adam(learning_rate=0.01)
    for _ in range(2):
        hand, net = twins(two_heads, BATCHES[0][0])
        trainer = gluon.Trainer(hand.collect_params(), mx.optimizer.Adam(learning_rate=0.01))
        train_by_hand(hand, trainer, BATCHES, two_losses)
        trainers = {"body": TrainerSpec("body.*", optimizer), "heads": TrainerSpec("(?!body).*", optimizer)}
        train(hybridized(net, hybrid), digit_spec(), BATCHES, trainers=trainers)
        assert_same_parameters(net, hand)
    assert optimizer.num_update == 0 and not optimizer.param_dict


# ---- schedules ---------------------------------------------------------------------------------------------


def constant(update: int) -> float:
    return 0.02 / (1 + update)


constant.base_lr = 0.02  # type: ignore[attr-defined]
schedulers = mx.lr_scheduler


class Proportional(schedulers.LRScheduler):
    """What the function is to be with another base rate."""

    def __call__(self, update: int) -> float:
        return constant(update) * self.base_lr / 0.02


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


def rates_of(declared: Any, **options: Any) -> tuple[list[float], Any]:
    """Return the rate after each of nine updates, and the estimator."""
    rates: list[float] = []
    saves = handler(batch_end=lambda e, **_: rates.append(e.trainers["trainer"].learning_rate))
    spec = TrainerSpec(".*", options.pop("optimizer", "sgd"), options, lr_scheduler=declared)
    estimator = MultiEstimator(twins(two_heads, BATCHES[0][0])[0], digit_spec(), spec)
    estimator.fit(BATCHES, epochs=EPOCHS, event_handlers=[*SILENT, saves])
    return rates, estimator


@pytest.mark.parametrize(("name", "as_option"), [(name, bool(i % 2)) for i, name in enumerate(SCHEDULES)])
def test_the_learning_rate_replaces_a_schedules_base_rate(name: str, as_option: bool) -> None:
    make = SCHEDULES[name]
    declared, expected = constant if name == "a function" else make(0.02), make(0.1)
    before = copy.deepcopy(vars(declared))
    option = {"lr_scheduler": declared} if as_option else {}
    rates, estimator = rates_of(None if as_option else declared, learning_rate=0.1, **option)
    assert rates == pytest.approx([expected(update) for update in range(1, 10)], rel=1e-12)
    assert estimator.trainers["trainer"].optimizer.lr_scheduler.base_lr == pytest.approx(expected.base_lr)
    comparable = lambda attributes: {k: v for k, v in attributes.items() if k != "scheduler"}  # noqa: E731
    assert comparable(vars(declared)) == comparable(before)


@pytest.mark.parametrize("name", ["factor, warm", "one cycle", "warm up of one cycle"])
def test_without_a_learning_rate_a_schedule_keeps_its_own(name: str) -> None:
    schedule = SCHEDULES[name](0.02)
    rates, _ = rates_of(schedule, optimizer="adam")
    assert rates == pytest.approx([schedule(update) for update in range(1, 10)], rel=1e-12)


def test_an_optimizer_object_trains_at_the_rates_of_its_own_loop() -> None:
    """What the object was created with is its own: also where MXNet prefers one of two rates."""

    def optimizer() -> Any:
        return mx.optimizer.SGD(learning_rate=0.1, lr_scheduler=SCHEDULES["cosine, warm"](0.02))

    hand, net = twins(two_heads, BATCHES[0][0])
    train_by_hand(hand, gluon.Trainer(hand.collect_params(), optimizer()), BATCHES * EPOCHS, two_losses)
    train(net, digit_spec(), BATCHES * EPOCHS, trainers=TrainerSpec(".*", optimizer()))
    assert_same_parameters(net, hand)


# ---- which losses reach which trainer ----------------------------------------------------------------------


class Adversarial(gluon.Block):
    """A generator, and a discriminator of what it makes, also detached."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = gluon.nn.Dense(4), gluon.nn.Dense(1)

    def forward(self, noise: Any) -> Any:
        made = self.generator(noise)
        return self.discriminator(made), self.discriminator(made.detach())


def gan() -> tuple[Any, TaskSpec, Any, Any]:
    losses = {
        "against": LossSpec(lambda score: score**2, "stopped"),
        "generator": LossSpec(lambda score: (1 - score) ** 2, "made", weight=0.5),
    }
    spec = TaskSpec(inputs=["noise"], outputs=["made", "stopped"], labels=(), losses=losses)
    trainers = {name: TrainerSpec(f"{name}.*") for name in ("generator", "discriminator")}
    return Adversarial(), spec, trainers, [(np.random.randn(8, 3).astype("float32"),)] * 2


def smooth(logits: Any) -> Any:
    return -mx.nd.log_softmax(logits).mean(axis=1)


def tasks() -> tuple[Any, TaskSpec, Any, Any]:
    losses = {
        "digit": LossSpec(CE, "digit", "digit"),
        "smooth": LossSpec(smooth, "digit"),
        "size": LossSpec(L2, "size", "size"),
        "constant": LossSpec(lambda size: mx.nd.zeros((len(size),), ctx=size.context), "size"),
    }
    trainers = {"a": TrainerSpec("(body|digit).*", "sgd"), "b": TrainerSpec("size.*", "sgd")}
    data = in_batches(two_head_arrays(16).values())
    return nets.two_heads("hybrid"), two_head_spec(losses=losses, metrics={}), trainers, data


REACHED = {
    "a GAN": (gan, {"generator": ("generator",), "discriminator": ("against", "generator")}),
    "several tasks": (tasks, {"a": ("digit", "smooth", "size"), "b": ("size",)}),
}


@pytest.mark.parametrize(("make", "expected"), REACHED.values(), ids=REACHED)
def test_which_losses_reach_which_trainer(make: Any, expected: Any) -> None:
    net, spec, trainers, data = make()
    devices = TWO if make is gan else ONE
    net.initialize(ctx=devices)
    estimator = MultiEstimator(net, spec, trainers, devices)
    plan = estimator.check(data)
    before = snapshot(net)
    estimator.fit(data, epochs=2, event_handlers=[])
    assert {trainer.name: trainer.losses for trainer in plan.trainers} == expected
    assert any((before[name] != array).any() for name, array in snapshot(net).items())


@pytest.mark.parametrize("options", [{"every": 3}, {"every": 2, "accumulate": True}], ids=str)
def test_which_losses_reach_which_trainer_where_loaders_take_turns(options: Any) -> None:
    net, spec, _, data = tasks()
    net.initialize(ctx=TWO)
    net.hybridize()
    loaders = {
        name: [{"image": batch[0], name: batch[place]} for batch in data]
        for place, name in enumerate(("digit", "size"), 1)
    }
    trainers = {name: TrainerSpec(f"{name}.*", **options) for name in ("body", "digit", "size")}
    estimator = MultiEstimator(net, spec, trainers, TWO)
    plan = estimator.check(loaders)
    words = ("digit", "smooth")
    expected = {"body": (*words, "size"), "digit": words, "size": ("size",)}
    assert {trainer.name: trainer.losses for trainer in plan.trainers} == expected
    assert {trainer.every for trainer in plan.trainers} == {options["every"]}
    estimator.fit(loaders, epochs=1, event_handlers=[])
