"""How often the loaders of several tasks were read, as figures."""

from collections.abc import Mapping
from typing import Any

from .task_loaders import COUNTS, TaskLoaders


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
