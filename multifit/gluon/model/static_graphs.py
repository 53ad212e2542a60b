"""Discard graphs of the user's blocks that would write gradients to arrays that were replaced."""

from __future__ import annotations

import operator
from typing import Any, Iterable, Sequence

from ..compat import mx


class StaticGraphs:
    """Discards the graphs of blocks hybridized with ``static_shape=True`` if gradients have new arrays.

    Parameters get new arrays when they are initialised again, moved to another device, or frozen and
    unfrozen. Such a graph would still write gradients to the old arrays, and nothing would learn.
    """

    def __init__(self, blocks: Iterable[Any], parameters: Sequence[Any]) -> None:
        self._blocks = [block for block in blocks if isinstance(block, mx.gluon.Block)]
        self._parameters = parameters
        self._gradients = self._current()

    def discard_stale(self) -> None:
        """Discard the graphs if arrays were replaced since the last call; they are traced again if needed."""
        # Gluon makes a new list of a parameter's gradients whenever it makes new arrays
        before, self._gradients = self._gradients, self._current()
        if not all(map(operator.is_, before, self._gradients)):
            for block in self._blocks:
                block.apply(_discard)

    def _current(self) -> list[Any]:
        return [parameter._grad for parameter in self._parameters]


def _discard(block: mx.gluon.Block) -> None:
    if isinstance(block, mx.gluon.HybridBlock) and dict(block._flags).get("static_shape"):
        block._clear_cached_op()
