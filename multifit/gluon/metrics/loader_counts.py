"""Figures that say how much of each of several loaders an epoch took."""

from __future__ import annotations

from typing import Any, Mapping

from ...sampling import COUNTS, TaskLoaders


class LoaderCounts:
    """The batches that the running epoch has taken of each loader, and how many passes over it that are."""

    def __init__(self, loaders: TaskLoaders) -> None:
        self._loaders = loaders
        self.names = [f"{what}_{name}" for what in COUNTS for name in loaders.loaders]

    def reset(self) -> None:
        """Do nothing: reading the loaders anew counts anew."""

    def read(self) -> dict[str, float]:
        """Return the figures by name."""
        taken, sizes = self._loaders.taken, self._loaders.sizes
        passes = [taken[name] / sizes[name] for name in taken]
        return dict(zip(self.names, [*map(float, taken.values()), *passes]))

    def state(self) -> dict[str, Any]:
        """Return the batches that were taken, by loader."""
        return dict(self._loaders.taken)

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned; a finished run reads no loader, which would count anew."""
        self._loaders.taken.update(state)  # older checkpoints have none
