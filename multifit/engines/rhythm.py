"""How often trainers update, and the batches whose gradients they have added up since then."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class Rhythm(NamedTuple):
    """A trainer updates once in `every` batches; with `accumulate`, as if they were one batch."""

    every: int
    accumulate: bool = False

    def waits(self, step: int) -> bool:
        """Whether the trainer does not update after batch number `step` of the run, counted from 0."""
        return (step + 1) % self.every > 0

    @property
    def window(self) -> int:
        """The number of batches whose gradients are added up to an update."""
        return self.every if self.accumulate else 1


def declared_rhythm(declared: Any, accumulate: int) -> Rhythm:
    """Return the rhythm of a declared trainer; `accumulate` is that of the estimator, for all trainers.

    What is not valid is reported with the trainer's other problems.
    """
    every, adds = getattr(declared, "every", 1), getattr(declared, "accumulate", False)
    if isinstance(every, (int, np.integer)) and every > 1:
        return Rhythm(int(every), isinstance(adds, (bool, np.bool_)) and bool(adds))
    return Rhythm(accumulate, accumulate > 1)


@dataclass
class _Added:
    """The batches since a trainer's last update, their samples, and the samples of the last batch."""

    batches: int = 0
    samples: int = 0
    last: int = 0


class AddedBatches:
    """Counts the batches whose gradients the trainers of these names have added up since their updates.

    A batch's gradient is a mean over its samples, and must count with their number. But a batch adds its
    gradient as it is, so what waits is scaled to its size before: it is always the sum over all samples,
    divided by the number of samples of the last batch.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._added = {name: _Added() for name in names}

    def factors(self, samples: int) -> dict[str, float]:
        """Return by what the waiting gradients are multiplied before a batch of `samples` adds its own."""
        waiting = {name: added.last for name, added in self._added.items() if added.samples}
        return {name: last / max(samples, 1) for name, last in waiting.items() if last != samples}

    def count(self, samples: int) -> None:
        """Count a batch whose gradients were added."""
        for added in self._added.values():
            added.batches += 1
            added.samples += samples
            added.last = max(samples, 1)

    def batches(self, name: str) -> int:
        """Return the number of batches since a trainer's last update."""
        return self._added[name].batches

    def share(self, name: str) -> float:
        """Return what a trainer's gradients are multiplied by before its update: the last batch's share."""
        added = self._added.get(name)
        return added.last / max(added.samples, 1) if added else 1.0

    def waiting(self) -> list[str]:
        """Return the trainers whose gradients wait for further batches."""
        return [name for name, added in self._added.items() if added.samples]

    def forget(self, updated: Container[str], others: bool = True) -> None:
        """Forget what was added: trainers that were `updated` begin anew, `others` lose gradients only."""
        for name, added in self._added.items():
            if name in updated:
                added.batches = 0
            if name in updated or others:
                added.samples = added.last = 0

    def state(self) -> dict[str, list[int]]:
        """Return what was counted, for a checkpoint; {} if nothing was."""
        counts = {name: [each.batches, each.samples, each.last] for name, each in self._added.items()}
        return {name: numbers for name, numbers in counts.items() if numbers[0]}

    def load(self, state: Mapping[str, Sequence[int]]) -> None:
        """Restore what :meth:`state` returned."""
        self._added = {name: _Added(*state.get(name, ())) for name in self._added}
