"""Runs that are stopped and resumed, each fit built as a new process would build it."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import Every, LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec, batches
from multifit.handlers import CheckpointHandler
from multifit.utils.seeding import seed_everything
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import normed_heads, two_heads
from tests.common.specs import CE, L2, two_head_spec

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip

SAMPLES, BATCH = 36, 8  # five batches an epoch, the last one of 4
BATCHES, EPOCHS = 5, 2
STEPS = BATCHES * EPOCHS
TWO = Every(2, "batch")


def distance(label: Any, output: Any) -> float:
    """A figure of a whole pass, whose arrays are stored."""
    return float(np.median(np.abs(label - output)))


def make_spec(**changes: Any) -> TaskSpec:
    metrics = {
        "accuracy": MetricSpec(mx.metric.Accuracy(), "digit", "digit"),
        "distance": MetricSpec(distance, "size", "size", mode="min"),
    }
    losses = {"digit": CE, "size": LossSpec(L2, weight=0.5)}
    return two_head_spec(**{"losses": losses, "metrics": metrics, **changes})


def make_trainers(momentum: float = 0.9) -> dict[str, TrainerSpec]:
    schedule = mx.lr_scheduler.FactorScheduler(4, 0.5, base_lr=0.02)
    return {
        "body": TrainerSpec("body.*", "adam", {"learning_rate": 0.02}, schedule, clip_norm=1.0),
        "heads": TrainerSpec("(digit|size).*", "sgd", {"learning_rate": 0.1, "momentum": momentum}),
    }


# ---- data --------------------------------------------------------------------------------------------------


def samples() -> tuple[np.ndarray, ...]:
    return tuple(two_head_arrays(SAMPLES).values())


class Cards:
    """A sampler that shuffles its last order again, as gluonnlp's FixedBucketSampler does."""

    def __init__(self) -> None:
        self.order = np.arange(SAMPLES)

    def __iter__(self) -> Iterator[Any]:
        np.random.shuffle(self.order)
        return iter([self.order[i : i + BATCH].copy() for i in range(0, SAMPLES, BATCH)])

    def __len__(self) -> int:
        return BATCHES


class Noisy:
    """An iterable that augments its samples with NumPy's, Python's and MXNet's generators."""

    def __iter__(self) -> Iterator[Any]:
        batches = in_batches(samples(), BATCH)
        for i in np.random.permutation(BATCHES):
            image, *labels = map(mx.nd.array, batches[i])
            noise = mx.nd.random.normal(shape=image.shape) * np.random.rand() * random.random()
            yield (image + noise, *labels)


class Augmented(gluon.data.ArrayDataset):
    """Samples augmented in the loader's workers, with NumPy's, Python's and MXNet's generators."""

    def __getitem__(self, index: int) -> Any:
        image, *labels = super().__getitem__(index)
        noise = mx.nd.random.normal(shape=image.shape).asnumpy() * np.random.rand()
        return (image + random.random() * noise, *labels)


class Numbered(gluon.data.ArrayDataset):
    """Samples that list in `loaded` which of them were loaded."""

    loaded: list[int] = []

    def __getitem__(self, index: int) -> Any:
        self.loaded.append(int(index))
        return super().__getitem__(index)


class OwnLoader(gluon.data.DataLoader):
    """A loader whose workers cannot be seeded, as it may start them in a way of its own."""

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()


def loader(dataset: Any = gluon.data.ArrayDataset, kind: Any = gluon.data.DataLoader, **options: Any) -> Any:
    if "batch_sampler" not in options:
        options = {"batch_size": BATCH, "shuffle": True, **options}
    return kind(dataset(*samples()), **options)


def data_iter() -> Any:
    image, *labels = two_head_arrays(SAMPLES).items()
    return mx.io.NDArrayIter(dict([image]), dict(labels), BATCH)


DATA: dict[str, Callable[[], Any]] = {
    "loader": loader,
    "iter": data_iter,
    "list": lambda: in_batches(samples(), BATCH),
    "noisy": Noisy,
    "cards": lambda: loader(batch_sampler=Cards()),
    "loader with rollover": lambda: loader(last_batch="rollover"),
    "augmenting processes": lambda: loader(Augmented, num_workers=2),
    "processes that cannot be seeded": lambda: loader(kind=OwnLoader, num_workers=1),
    "arrays": lambda: batches(*samples(), batch_size=BATCH, shuffle=True),
}


# ---- runs --------------------------------------------------------------------------------------------------


class Crash(RuntimeError):
    """Stands for a power cut."""


def power_cut() -> None:
    raise Crash


class At:
    """Does something at an event of a step: after CheckpointHandler, or before it if `priority` is 0."""

    def __init__(
        self, step: int, event: str = "batch_end", priority: float = 9000.0, action: Any = power_cut
    ) -> None:
        self.step, self.priority, self.action = step, priority, action
        setattr(self, event, self._act)

    def train_begin(self, estimator: Any) -> None:
        """An event, so that it is a handler."""

    def _act(self, estimator: Any) -> Any:
        return self.action() if estimator.state.step == self.step else None


@dataclass
class Run:
    """A training, built for each fit as a new process would build it."""

    folder: Path
    data: str = "loader"
    devices: int = 1
    every: Any = TWO
    net: Callable[[], Any] = normed_heads
    spec: Callable[[], Any] = make_spec
    trainers: Callable[[], Any] = make_trainers
    handlers: Callable[[], list[Any]] = list
    estimator: Any = None

    def build(self) -> Any:
        seed_everything(0)
        contexts = [mx.cpu(i) for i in range(self.devices)]
        self.estimator = MultiEstimator(self.net(), self.spec(), self.trainers(), contexts)
        return self.estimator

    def fit(self, *more: Any, resume: Any = None, **limits: Any) -> Any:
        self.build()
        if resume is not None:
            seed_everything(99)  # as a new process may have drawn other numbers
        data = DATA[self.data]()
        handlers = [*self.handlers(), CheckpointHandler(self.folder, self.every, seed=7), *more]
        limits = limits or {"epochs": EPOCHS}
        validation = [tuple(column[:12] for column in samples())]
        return self.estimator.fit(data, validation, event_handlers=handlers, resume=resume, **limits)

    def crash(self, *arguments: Any, **options: Any) -> None:
        with pytest.raises(Exception) as caught:
            self.fit(At(*arguments), **options)
        assert isinstance(caught.value, Crash)

    def resume(self, *more: Any, **limits: Any) -> Any:
        return self.fit(*more, resume=self.folder, **limits)

    def end(self) -> dict[str, Any]:
        """Return everything that must be equal after a resumed fit; parameters and states as bytes."""
        return {
            **values(self.estimator),
            "history": self.estimator.history.to_json(),
            "rates": self.estimator.learning_rates(),
            "state": self.estimator.state.to_dict(),
            "reason": self.estimator.state.stop_reason,
        }


def simple_run(folder: Path, every: Any, rate: float = 0.0) -> Run:
    """Return a run with nothing random; with a rate of 0, the order of its data changes no figure."""

    def trainers() -> Any:
        return TrainerSpec(".*", "adam", {"learning_rate": rate})

    return Run(folder, "list", 1, every, lambda: two_heads("hybrid"), lambda: make_spec(metrics={}), trainers)


def values(estimator: Any) -> dict[str, bytes]:
    """Return the bytes of all parameters and optimizer states."""
    arrays = {
        f"{name}@{data.context}": data.asnumpy().tobytes()
        for name, parameter in estimator.parameters.items()
        for data in parameter.list_data()
    }
    for name, trainer in estimator.trainers.items():
        for number, updater in enumerate(trainer._updaters):
            for i, state in updater.states.items():
                leaves = state if isinstance(state, tuple) else (state,)
                content = [leaf.asnumpy().tobytes() for leaf in leaves if leaf is not None]
                arrays[f"{name}/{number}/{i}"] = b"".join(content)
    return arrays


def unequal(one: Mapping[str, Any], two: Mapping[str, Any]) -> list[str]:
    return [name for name in {**one, **two} if name not in one or name not in two or one[name] != two[name]]


WHOLE: dict[Any, dict[str, Any]] = {}


def end_without_stop(run: Run, name: str = "", **limits: Any) -> dict[str, Any]:
    """Return the end of the same run without a stop; trained once for all tests.

    `name` tells apart runs of other handlers or nets.
    """
    key = name, run.data, run.devices, repr(run.every), repr(limits)
    if key not in WHOLE:
        whole = replace(run, folder=run.folder.with_name("whole"))
        whole.fit(**limits)
        WHOLE[key] = whole.end()
    return WHOLE[key]
