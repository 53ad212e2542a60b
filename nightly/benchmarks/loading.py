"""Training from DataLoaders: with transforms, workers or arrays, compared with a hand-written loop."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Callable, Iterator

import numpy as np
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.data import ArrayDataset, DataLoader

from .rounds import Rounds, timed
from .rows import Row
from .subjects import SINGLES, Single
from .subjects.data import BATCH, digit_batches
from .subjects.subject import task

__all__ = ["CASES", "NAME", "Case", "measure"]

NAME = "loading"
PATCHES = 512


@dataclass(frozen=True)
class Case:
    """A net and a data set that is read in shuffled batches of 64."""

    name: str
    net: Single
    dataset: Callable[[], Any]
    workers: int
    rounds: int

    def loader(self) -> Any:
        """Return a loader; each contender has its own."""
        return DataLoader(self.dataset(), BATCH, shuffle=True, num_workers=self.workers)

    def __str__(self) -> str:
        return self.name


def measure(case: Case, epochs: int | None = None) -> Iterator[Row]:
    """Yield milliseconds per batch of each contender, loading included."""
    ours, theirs = case.loader(), case.loader()
    turns = {"hand-written": timed(partial(case.net.hand_written(), theirs))}
    times = Rounds(turns).run(case.net.estimator(), ours, epochs or case.rounds)
    yield Row.of_seconds(NAME, case.name, times, len(ours))


def _small() -> Any:
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(16, 3, strides=2, activation="relu"), nn.Conv2D(32, 3, strides=2, activation="relu"),
        nn.Flatten(), nn.Dense(64, activation="relu"), nn.Dense(2),
    )  # fmt: skip
    return net


@cache
def _patches() -> Any:
    """Return patches of photographs, which Gluon's transforms augment and turn into (3, 32, 32) when read."""
    task("augmentation")  # puts tasks/ on the path
    from data.patches import augmentation, patches

    return patches(PATCHES, 32).transform_first(augmentation(32))


@cache
def _digits() -> Any:
    image, kind = (np.concatenate([slot.asnumpy() for slot in slots]) for slots in zip(*digit_batches()))
    return ArrayDataset(image, kind)


def _first_patches() -> list[Any]:
    return [next(iter(DataLoader(_patches(), BATCH)))]


SMALL = Single("small net", _small, _first_patches, gluon.loss.SoftmaxCrossEntropyLoss)
MLP = next(net for net in SINGLES if net.name == "MLP")
CASES = (
    Case("images with transforms, 0 workers", SMALL, _patches, 0, 8),
    Case("images with transforms, 2 workers", SMALL, _patches, 2, 8),
    Case("arrays in memory, MLP", MLP, _digits, 0, 30),
)
