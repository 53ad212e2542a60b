"""Refuse a second backward pass through the same forward pass, which is wrong for Dropout in MXNet."""

from __future__ import annotations

import json
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Iterator, Sequence

from ...errors import HandlerError
from ...protocols import Array
from ..compat import mx
from .network import Network

MESSAGE = (
    "a handler's change_objective computed gradients with retain_graph=True, and the net uses Dropout, which "
    "in MXNet is the identity in every backward pass but the first: parameters would get wrong gradients. "
    "In place of nn.Dropout(p), let the net use x * F.BlockGrad(F.random.uniform_like(x) < 1 - p) / (1 - p) "
    "when training, or read the gradients of the whole objective in change_gradients"
)
_RETAIN_GRAPH, _CREATE_GRAPH = 5, 6  # positions among the arguments of MXAutogradBackwardEx
# Whether each backward pass in the block that this thread is in keeps its graph
_RETAINED: ContextVar[list[bool] | None] = ContextVar("retained", default=None)


@contextmanager
def refuse_second_backward(network: Network, objectives: Sequence[Array]) -> Iterator[None]:
    """Raise HandlerError if the block computes gradients that make those of `objectives` wrong.

    Only gradients with ``retain_graph=True`` matter: without, MXNet deletes the graph after the first
    backward pass, and raises in the second.
    """
    _watch()
    retained = list[bool]()
    token = _RETAINED.set(retained)
    try:
        yield
    finally:
        _RETAINED.reset(token)
    if any(retained) and any(map(drops, _symbols(network, objectives))):
        raise HandlerError(MESSAGE)


@cache
def _watch() -> None:
    """Let MXNet's library note from now on which backward passes keep their graph."""
    library = mx.base._LIB
    backward = library.MXAutogradBackwardEx

    def noted(*arguments: Any) -> Any:
        retained = _RETAINED.get()
        if retained is not None:
            retained.append(any(arguments[i].value for i in (_RETAIN_GRAPH, _CREATE_GRAPH)))
        return backward(*arguments)

    library.MXAutogradBackwardEx = noted


def _symbols(network: Network, objectives: Sequence[Array]) -> Iterator[Any]:
    """Yield the graphs through which a batch went: of the net, of what autograd recorded, and of blocks."""
    yield from network.traced_symbols
    yield from (mx.autograd.get_symbol(objective) for objective in objectives)
    blocks: list[Any] = []
    network.net.apply(blocks.append)
    yield from (block._cached_graph[1] for block in blocks if getattr(block, "_cached_graph", None))


def drops(symbol: Any) -> bool:
    """Whether a graph contains Dropout, which MXNet computes wrongly in a second backward pass."""
    nodes = json.loads(symbol.tojson())["nodes"]
    return any(node["op"] == "Dropout" and float(node.get("attrs", {}).get("p", 0.5)) > 0 for node in nodes)
