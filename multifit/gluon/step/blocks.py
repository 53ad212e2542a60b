"""The blocks of a net, and what of them is frozen.

A frozen BatchNorm layer keeps its running statistics.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..compat import mx
from ..graph.cut import as_json

STOCK = "mxnet.", "gluoncv.", "gluonnlp.", "multifit."  # toolkits' blocks
GLOBAL = "use_global_stats"
OPERATORS = ("BatchNorm", "_contrib_BatchNormWithReLU", "_contrib_SyncBatchNorm")


def blocks_of(net: Any, name: str = "") -> dict[str, Any]:
    """Return a net and all blocks in it by their names, such as ``encoder.0``; the name of the net is ""."""
    blocks = {name: net}
    for child, block in net._children.items():
        blocks.update(blocks_of(block, f"{name}.{child}".lstrip(".")))
    return blocks


@contextmanager
def run_by_python(blocks: Iterable[Any]) -> Iterator[None]:
    """Run hybridized blocks as if they were not hybridized, and keep their graphs."""
    active = [block for block in blocks if getattr(block, "_active", False)]
    for block in active:
        block._active = False
    try:
        yield
    finally:
        for block in active:
            block._active = True


class _Norm(NamedTuple):
    """A BatchNorm layer: the block that computes it, its running statistics, and what it learns."""

    block: Any
    statistics: Sequence[Any]
    learns: Sequence[Any]


class Frozen:
    """Knows which parameters and which BatchNorm layers of a net are frozen now.

    As in Keras, a frozen BatchNorm layer normalises by its running statistics in training too, and so does
    not change them. A layer is frozen if everything that it learns is, by ``frozen=`` or by
    ``grad_req="null"``; or if ``frozen=`` selects its running statistics, as a layer may learn nothing.

    `parameters` are all parameters by structural name, and `frozen` the names of those that ``frozen=``
    selects; :meth:`set_statistics` adds to them later.
    """

    def __init__(
        self, net: Any, parameters: Mapping[str, mx.gluon.Parameter], frozen: Collection[str]
    ) -> None:
        self._parameters = parameters
        self._frozen = {parameters[name] for name in frozen}
        self._blocks = list(dict.fromkeys(blocks_of(net).values()))  # each once
        self._norms = [norm for block in self._blocks for norm in _norms(block)]
        self._traced: dict[Any, dict[str, Any]] = {}  # graphs of blocks in which norms are frozen
        self._requests: Any = None  # for which they were traced
        self.changes = 0  # of running statistics, which have no grad_req
        self.version = 0  # another one if something else is frozen

    def set_statistics(self, names: Iterable[str], frozen: bool) -> list[str]:
        """Freeze running statistics, or no longer; return the names of those for which this is a change."""
        named = {name: self._parameters[name] for name in names}
        changed = {n: p for n, p in named.items() if not p._differentiable and (p in self._frozen) != frozen}
        self._frozen ^= set(changed.values())
        self.changes += bool(changed)
        return list(changed)

    def statistics(self) -> list[str]:
        """Return the names of the running statistics of frozen layers."""
        frozen = {each for norm in self._norms if self._is_frozen(norm) for each in norm.statistics}
        return [name for name, parameter in self._parameters.items() if parameter in frozen]

    def changed(self) -> None:
        """Note that something else is frozen: graphs, which know what learns, must be traced again."""
        self.version += 1

    def forget(self) -> None:
        """Discard traced graphs, as the user may have hybridized blocks anew."""
        self._traced.clear()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let frozen layers normalise by their running statistics within the block.

        Blocks that the user hybridized use graphs of their own within it.
        """
        norms = [norm for norm in self._norms if self._is_frozen(norm)]
        requests = [parameter.grad_req for parameter in self._parameters.values()], self.changes
        if self._requests != requests:
            self._traced.clear()
            self._requests = requests
        layers = [norm.block for norm in norms if not isinstance(norm.block, mx.gluon.SymbolBlock)]
        before = [layer._kwargs[GLOBAL] for layer in layers]
        blocks = [block for block in self._blocks if norms and isinstance(block, mx.gluon.HybridBlock)]
        before_graphs = [_cached(block) for block in blocks]
        names = {norm.statistics[0].name for norm in norms}
        for layer in layers:
            layer._kwargs[GLOBAL] = True
        for block in blocks:
            vars(block).update(self._traced.get(block) or _of_frozen(block, names))
        try:
            yield
        finally:
            for layer, value in zip(layers, before):
                layer._kwargs[GLOBAL] = value
            for block, cached in zip(blocks, before_graphs):
                self._traced[block] = _cached(block)
                vars(block).update(cached)

    def _is_frozen(self, norm: _Norm) -> bool:
        if any(each in self._frozen for each in norm.statistics):
            return True
        return bool(norm.learns) and all(p.grad_req == "null" or p in self._frozen for p in norm.learns)


def _norms(block: Any) -> Iterator[_Norm]:
    """Yield the BatchNorm layers that a block computes itself."""
    if isinstance(block, mx.gluon.nn.basic_layers._BatchNorm):
        learns = [each for each in (block.gamma, block.beta) if each._differentiable]
        yield _Norm(block, (block.running_mean, block.running_var), learns)
    elif isinstance(block, mx.gluon.SymbolBlock):
        parameters = dict(block.collect_params().items())
        for node, inputs in _nodes(json.loads(as_json(block._cached_graph[1]))):
            if parameters.keys() >= set(inputs[1:]):  # else the graph computes them, or takes them as inputs
                gamma, beta, *statistics = (parameters[name] for name in inputs[1:])
                is_fixed = node.get("attrs", {}).get("fix_gamma", "True") in ("True", "1")
                yield _Norm(block, statistics, [beta] if is_fixed else [gamma, beta])


def _nodes(graph: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield the BatchNorm operators of a graph in JSON, with the names of their inputs."""
    nodes = graph["nodes"]
    for node in nodes:
        if node["op"] in OPERATORS:
            yield node, [nodes[number]["name"] for number, *_ in node["inputs"]]


def _cached(block: Any) -> dict[str, Any]:
    """Return what Gluon keeps in a block after it has traced it."""
    return {name: value for name, value in vars(block).items() if name.startswith("_cached_")}


def _of_frozen(block: Any, names: Collection[str]) -> dict[str, Any]:
    """Return what a block keeps instead while norms with these running means are frozen.

    A SymbolBlock has a graph from the start; any other block is traced again.
    """
    if not isinstance(block, mx.gluon.SymbolBlock):
        return {"_cached_graph": (), "_cached_op": None}
    inputs, symbol = block._cached_graph
    graph = json.loads(as_json(symbol))
    for node, (*_, mean, _) in _nodes(graph):
        if mean in names:
            node.setdefault("attrs", {})[GLOBAL] = "True"
    return {"_cached_graph": (inputs, mx.sym.load_json(json.dumps(graph))), "_cached_op": None}
