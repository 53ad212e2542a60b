"""Keep track of the loaders that the running epoch reads: nothing else may read them meanwhile."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator

from ...checks import one_shot
from ...distributed import unwrapped
from ...errors import Problem
from ...sampling import TaskLoaders
from ..compat import mx
from .data_iters import is_resettable


class LoadersInUse:
    """Knows what the running epoch reads: another pass over its iterator would take batches from it."""

    def __init__(self) -> None:
        self._iterators: list[Any] = []

    @contextmanager
    def reading(self, data: Any) -> Iterator[None]:
        """Mark a loader, or several, as in use within the block."""
        self._iterators = _iterators(data)
        try:
            yield
        finally:
            self._iterators = []

    def problems(self, what: str, data: Any) -> list[Problem]:
        """Return why a loader cannot be read now; `what` is its name in messages."""
        used = [each for each in _iterators(data) if any(each is other for other in self._iterators)]
        if not used:
            return []
        kind = type(used[0]).__name__
        message = f"{what} would advance the {kind} that the running epoch reads, and end the epoch early"
        way_out = "give another iterator over the same data, or read this one when the epoch has ended"
        return [Problem("data", f"{message}; {way_out}")]


def _iterators(data: Any) -> list[Any]:
    """Return the iterators that a pass over a loader advances; none if each pass has its own position."""
    data = unwrapped(data)
    if isinstance(data, TaskLoaders):
        return [each for loader in data.loaders.values() for each in _iterators(loader)]
    if isinstance(data, mx.io.ResizeIter):
        return [data, *_iterators(data.data_iter)]
    if isinstance(data, mx.io.PrefetchingIter):
        return [data, *(each for source in data.iters for each in _iterators(source))]
    return [data] if is_resettable(data) or one_shot(data) else []
