"""A graph, copied node by node, with other nodes in the place of some; its variables stay the same ones."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any, Iterator, Mapping, Sequence

from ..compat import mx

__all__ = ["Entry", "Node", "Rewriter"]

Node = Mapping[str, Any]  # as MXNet's format has it: op, name, attrs, inputs
Entry = list[int]  # a node's number, which of its outputs, and MXNet's version of it: 0


class Rewriter:
    """Copies one graph; a subclass says in `replace` what becomes of a node.

    Attributes
    ----------
    nodes : list of dict
        The new graph's.
    count : int
        How many operators became others.
    """

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.count = 0
        self._numbers: list[int] = []  # of the nodes that were copied, in the new graph

    def rewrite(self, symbols: Sequence[Any]) -> list[Any]:
        """Return the same outputs of the new graph.

        Parameters
        ----------
        symbols : sequence of Symbol
            Outputs of one graph.
        """
        made = [symbol for symbol in symbols if not _is_variable(symbol)]
        if not made:
            return list(symbols)
        group = mx.sym.Group(made)
        graph = json.loads(group.tojson())
        for node in graph["nodes"]:
            inputs = [self._moved(entry) for entry in node["inputs"]]
            self._numbers.append(self.replace({**node, "inputs": inputs}))
        ends = [self.end(self._moved(head)) for head in graph["heads"]]
        read = mx.sym.load_json(json.dumps({**graph, **self._format(ends)}))
        # It has variables of its own: other nodes, to MXNet, than those that the rest of the graph shares.
        heads = iter(read(**{each.name: each for each in group.get_internals() if _is_variable(each)}))
        return [symbol if _is_variable(symbol) else _next(heads, symbol) for symbol in symbols]

    def replace(self, node: Node) -> int:
        """Add what stands in a node's place, and return its number; here the node itself.

        What the node is given was added before it, and its inputs are the new graph's.
        """
        return self.append(node)

    def end(self, entry: Entry) -> Entry:
        """Return what stands in an output's place."""
        return entry

    def append(self, node: Node) -> int:
        """Add a node; return its number."""
        self.nodes.append(dict(node))
        return len(self.nodes) - 1

    def _moved(self, entry: Entry) -> Entry:
        return [self._numbers[entry[0]], *entry[1:]]

    def _format(self, ends: Sequence[Entry]) -> dict[str, Any]:
        variables = [number for number, node in enumerate(self.nodes) if node["op"] == "null"]
        rows = list(range(len(self.nodes) + 1))
        return {"nodes": self.nodes, "arg_nodes": variables, "node_row_ptr": rows, "heads": list(ends)}


def _is_variable(symbol: Any) -> bool:
    # an operator without inputs, such as arange, has no children either
    return symbol.get_children() is None and symbol.list_inputs() == [symbol.name]


def _next(heads: Iterator[Any], symbol: Any) -> Any:
    """Return as many of the heads as a symbol has outputs: ``F.split`` makes one of several."""
    own = list(islice(heads, len(symbol.list_outputs())))
    return own[0] if len(own) == 1 else mx.sym.Group(own)
