"""A new trainer with a restored state continues bit for bit like the old one."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit.gluon.snapshot.snapshot import MXNetTrees
from multifit.gluon.snapshot.trainers import load_trainer, partly_saved, save_trainer
from multifit.schedules import OneCycle, ScaledSchedule, WarmUp

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip

NAMES = ["first", "second", "third"]
SHAPES = [(3, 4), (4,), (2, 3)]


def move(folder: Path, old: Any, new: Any) -> None:
    """Save a trainer's state to a file, and load it into another trainer."""
    MXNetTrees().write(folder, "trainer", save_trainer(old, NAMES))
    load_trainer(new, MXNetTrees().read(folder, "trainer"), NAMES)


def parameters(devices: int, dtype: str = "float32") -> list[Any]:
    contexts = [mx.cpu(i) for i in range(devices)]
    parameters = []
    for name, shape in zip(NAMES, SHAPES):
        parameters.append(gluon.Parameter(name, shape=shape, dtype=dtype))
        parameters[-1].initialize(mx.init.Normal(1.0), ctx=contexts)
    return parameters


def trainer_of(held: list[Any], optimizer: Any, **options: Any) -> Any:
    options = {"learning_rate": 0.01, **options} if isinstance(optimizer, str) else None
    return gluon.Trainer(held, optimizer, options, kvstore="device", update_on_kvstore=False)


def trained(trainer: Any, steps: range) -> None:
    """Step with gradients that differ from device to device; the second parameter misses every third."""
    for step in steps:
        random = np.random.RandomState(step)
        mx.random.seed(step)
        for place, parameter in enumerate(trainer._params):
            for data, grad in zip(parameter.list_data(), parameter.list_grad()):
                grad[:] = random.randn(*data.shape)
                data._fresh_grad = place != 1 or step % 3 > 0
        trainer.step(2, ignore_stale_grad=True)


def assert_continues(
    folder: Path, make: Callable[[list[Any]], Any], devices: int = 2, dtype: str = "float32"
) -> None:
    """Check that a new trainer with the state of an old one ends as that one does."""
    old, new = (make(parameters(devices, dtype)) for _ in range(2))
    trained(old, range(5))
    move(folder, old, new)
    for mine, other in zip(old._params, new._params):
        for data, copy in zip(mine.list_data(), other.list_data()):  # with SGLD and Nadam, replicas diverge
            data.copyto(copy)
    for trainer in (old, new):
        trained(trainer, range(5, 10))
    assert new.learning_rate == old.learning_rate
    for mine, other in zip(old._params, new._params):
        for data, copy in zip(mine.list_data(), other.list_data()):
            np.testing.assert_array_equal(copy.asnumpy(), data.asnumpy())


OPTIMIZERS = [
    ("sgd", {}, 1), ("sgd", {"momentum": 0.9, "wd": 0.1}, 2), ("signum", {"momentum": 0.9}, 2),
    ("lars", {}, 2), ("lamb", {}, 2), ("adam", {"beta1": 0.8, "clip_gradient": 1.0}, 1), ("ftrl", {}, 2),
    ("rmsprop", {"centered": True}, 2), ("nadam", {}, 2), ("sgld", {}, 2),
    ("lamb float16", {"multi_precision": True}, 1), ("adam float64", {}, 1),
    ("lbsgd", {"momentum": 0.9, "warmup_strategy": "lars"}, 2),
    ("adamw", {}, 2), ("radam", {"wd": 0.1}, 2), ("lion", {}, 2),
    ("adamw float16", {"multi_precision": True}, 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "devices"), OPTIMIZERS, ids=str)
def test_every_optimizer_continues_exactly(tmp_path: Path, name: str, options: Any, devices: int) -> None:
    name, _, dtype = name.partition(" ")
    make = partial(trainer_of, optimizer=name, **options)
    assert_continues(tmp_path, make, devices, dtype or "float32")


def falling() -> Any:
    return mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.1)


SCHEDULES: dict[str, Callable[[], Any]] = {
    "factor": falling,
    "several": lambda: mx.lr_scheduler.MultiFactorScheduler([2, 4, 7], 0.3, 0.1, warmup_steps=1),
    "cosine": lambda: mx.lr_scheduler.CosineScheduler(9, 0.1, warmup_steps=3),
    "one cycle": lambda: OneCycle(0.1, 10),
    "warm-up": lambda: WarmUp(falling(), 3),
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_every_schedule_continues_exactly(tmp_path: Path, schedule: Any) -> None:
    assert_continues(
        tmp_path, lambda held: trainer_of(held, "adam", lr_scheduler=schedule(), learning_rate=0.1)
    )


def test_a_rate_set_during_a_schedule_is_restored(tmp_path: Path) -> None:
    old, new = (trainer_of(parameters(1), "sgd", lr_scheduler=falling(), learning_rate=0.1) for _ in range(2))
    fresh = save_trainer(old, NAMES)
    trained(old, range(3))
    old.optimizer.lr_scheduler = ScaledSchedule(old.optimizer.lr_scheduler)
    old.optimizer.lr_scheduler.set(0.7, old.optimizer.num_update)
    move(tmp_path, old, new)
    assert isinstance(new.optimizer.lr_scheduler, ScaledSchedule) and new.learning_rate == 0.7
    for each in (old, new):
        trained(each, range(3, 6))
    assert new.learning_rate == old.learning_rate
    load_trainer(new, fresh, NAMES)
    assert new.optimizer.num_update == 0 and all(updater.states == {} for updater in new._updaters)
    assert type(new.optimizer.lr_scheduler) is mx.lr_scheduler.FactorScheduler and new.learning_rate == 0.1


def test_options_set_by_hand_are_restored_and_parameters_in_another_order_find_their_states() -> None:
    old, new = trainer_of(parameters(1), "adam"), trainer_of(parameters(1)[::-1], "adam")
    trained(old, range(2))
    old.set_learning_rate(0.5)
    old.optimizer.wd, old.optimizer.beta1, old.optimizer.rescale_grad, old._scale = 0.25, 0.5, 3.0, 4.0
    load_trainer(new, save_trainer(old, NAMES), NAMES[::-1])
    one = new.optimizer
    assert (new.learning_rate, one.wd, one.beta1, one.rescale_grad) == (0.5, 0.25, 0.5, 3.0)
    assert (new._scale, one.num_update) == (4.0, 2)
    for i, name in enumerate(NAMES):
        means = [updater.states[j][0] for updater, j in ((old._updaters[0], i), (new._updaters[0], 2 - i))]
        assert np.array_equal(means[0].asnumpy(), means[1].asnumpy()), name


class Own(mx.optimizer.SGD):
    """A user's optimizer, which remembers a number and a list."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.number, self.list = 0, [0]

    def update_multi_precision(self, *arguments: Any) -> None:
        self.number, self.list = self.number + 1, [*self.list, 1]
        super().update_multi_precision(*arguments)


class WithState(Own):
    """One that says what it remembers."""

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number, "list": self.list}

    def load_state_dict(self, state: Any) -> None:
        self.number, self.list = state["number"], state["list"]


@pytest.mark.parametrize(("kind", "restored"), [(Own, False), (WithState, True)])
def test_a_users_optimizer_says_what_it_remembers_or_only_numbers_are_restored(
    tmp_path: Path, kind: Any, restored: bool
) -> None:
    old, new = (trainer_of(parameters(1), kind(learning_rate=0.1)) for _ in range(2))
    trained(old, range(2))
    move(tmp_path, old, new)
    assert new.optimizer.number == old.optimizer.number > 0
    assert (new.optimizer.list == old.optimizer.list) is restored
    assert partly_saved(new.optimizer) == ([] if restored else ["Own"])
