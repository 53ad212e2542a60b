"""Loaders by task: their batches, and how often they were read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..utils.errors import user_code
from .ways import Sampling, Update


@dataclass(frozen=True)
class TaskBatch:
    """The batches of one update, as the loaders yielded them, by the loaders' names.

    Parameters
    ----------
    batches : mapping of str to object
        One batch, or, with ``Together``, one from each loader.
    """

    batches: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The loader's name; of several loaders, their names joined by " + "."""
        return " + ".join(self.batches)


COUNTS = ("batches", "passes")
"""What the figures of a loader count: ``batches_<loader>``, ``passes_<loader>``."""


class TaskLoaders:
    """A loader for each task, read as one loader: `sampling` says which of them each update takes from.

    With `apart`, the loaders hold sets for validation instead, each with figures of its own; `sets` are
    their names.

    Without `sampling`, as in evaluations, the loaders are read one after the other, each once, or only the
    first `most` batches of each.

    The attributes are dicts by loader. `sizes` are the numbers of batches that the loaders have, by default
    their lengths. `counts` are the numbers of batches that an epoch takes from them. Both are empty without
    `sampling`. `taken` are the numbers of batches that the running epoch has taken; the code that reads the
    loaders counts them. `slots` are the slots of each loader's batches, known once the first were read.
    """

    def __init__(
        self,
        loaders: Mapping[str, Any],
        sampling: Sampling | None = None,
        sizes: Mapping[str, int] | None = None,
        apart: bool = False,
    ) -> None:
        self.loaders, self.sampling = dict(loaders), sampling
        self.sets = tuple(self.loaders) if apart else ()
        # computed once: a loader that carries samples over to its next pass has another length then
        if sizes is None:
            sizes = {} if sampling is None else {name: len(loader) for name, loader in loaders.items()}
        self.sizes = dict(sizes)
        with user_code(lambda: f"sampling: {type(sampling).__name__}.counts"):
            self.counts = {} if sampling is None else sampling.counts(self.sizes)
        self.taken = dict.fromkeys(self.loaders, 0)
        self.slots: Mapping[str, Mapping[str, str]] = {}
        self.most: int | None = None

    def each_set(self) -> dict[str, TaskLoaders]:
        """Return what is measured by itself, by what its figures' names begin with."""
        parts = {f"{name}_": TaskLoaders({name: self.loaders[name]}) for name in self.sets} or {"": self}
        for part in parts.values():
            part.most = self.most
        return parts

    @property
    def joins(self) -> bool:
        """Whether an update gets a batch of every loader."""
        return self.sampling is not None and self.sampling.joins

    def __len__(self) -> int:
        if self.sampling is None:
            return sum(min(len(loader), self.most or len(loader)) for loader in self.loaders.values())
        return max(self.counts.values()) if self.joins else sum(self.counts.values())

    def updates(self, seed: int, epoch: int) -> list[Update]:
        """Return the loaders of each of an epoch's updates: a pure function of the seed and the epoch."""
        assert self.sampling is not None
        random = np.random.RandomState([seed % 2**32, epoch])
        with user_code(lambda: f"sampling: {type(self.sampling).__name__}.updates"):
            return self.sampling.updates(self.counts, random)


class LoaderCounts:
    """The number of batches that the running epoch has taken from each loader, and the passes over it."""

    def __init__(self, loaders: TaskLoaders) -> None:
        self._loaders = loaders
        self.names = [f"{what}_{name}" for what in COUNTS for name in loaders.loaders]

    def reset(self) -> None:
        """Do nothing: the count starts again when the loaders are read again."""

    def read(self) -> dict[str, float]:
        """Return the figures by name."""
        taken, sizes = self._loaders.taken, self._loaders.sizes
        passes = [taken[name] / sizes[name] for name in taken]
        return dict(zip(self.names, [*map(float, taken.values()), *passes]))

    def state(self) -> dict[str, Any]:
        """Return the number of batches that were taken, by loader."""
        return dict(self._loaders.taken)

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned: a finished run does not read its loaders again."""
        self._loaders.taken.update(state)
