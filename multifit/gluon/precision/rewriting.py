"""Copy a graph node by node, with changes; the copy has the same variables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

from ..compat import mx

Node = dict[str, Any]
"""An operator or a variable in MXNet's JSON format: ``op``, ``name``, ``attrs`` and ``inputs``."""
Entry = list[int]
"""An output of a node: the node's number, the output's number, and a version that is always 0."""


class GraphBuilder(Protocol):
    """Builds the copy of one graph.

    Attributes
    ----------
    nodes : list of Node
        The copy's nodes so far, each behind the nodes of its inputs.
    """

    nodes: list[Node]

    def add(self, node: Node) -> int:
        """Add a node of the original graph, whose `inputs` are the copy's; return its number in the copy."""

    def output(self, entry: Entry) -> Entry:
        """Return the entry of the copy to use as the graph's output in place of `entry`."""


def rewrite(symbols: Sequence[mx.sym.Symbol], builder: GraphBuilder) -> list[mx.sym.Symbol]:
    """Return the outputs of a graph's copy.

    Parameters
    ----------
    symbols : sequence of Symbol
        Outputs of one graph.
    builder : GraphBuilder
        Builds the copy.

    Returns
    -------
    list of Symbol
        One for each of `symbols`; an output that is a variable is returned itself.
    """
    computed = [symbol for symbol in symbols if not _is_variable(symbol)]
    if not computed:
        return list(symbols)
    group = mx.sym.Group(computed)
    graph = json.loads(group.tojson())
    numbers: list[int] = []  # in the copy, by number in the original

    def moved(entry: Entry) -> Entry:
        return [numbers[entry[0]], *entry[1:]]

    for node in graph["nodes"]:
        numbers.append(builder.add({**node, "inputs": [moved(entry) for entry in node["inputs"]]}))
    outputs = [builder.output(moved(entry)) for entry in graph["heads"]]
    copy = mx.sym.load_json(json.dumps({**graph, **_json_fields(builder.nodes, outputs)}))
    # The loaded graph has variables of its own; replace them by those that the rest of the graph shares.
    variables = {each.name: each for each in group.get_internals() if _is_variable(each)}
    copied = iter(copy(**variables))
    return [symbol if _is_variable(symbol) else _take_outputs(copied, symbol) for symbol in symbols]


def _json_fields(nodes: list[Node], outputs: list[Entry]) -> dict[str, Any]:
    variables = [number for number, node in enumerate(nodes) if node["op"] == "null"]
    rows = list(range(len(nodes) + 1))
    return {"nodes": nodes, "arg_nodes": variables, "node_row_ptr": rows, "heads": outputs}


def _is_variable(symbol: mx.sym.Symbol) -> bool:
    # Operators without inputs, such as arange, have no children either.
    return symbol.get_children() is None and symbol.list_inputs() == [symbol.name]


def _take_outputs(copied: Iterator[mx.sym.Symbol], symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """Return as many of the copied outputs as `symbol` has: ``F.split`` is one symbol of several outputs."""
    outputs = list(islice(copied, len(symbol.list_outputs())))
    return outputs[0] if len(outputs) == 1 else mx.sym.Group(outputs)
