"""A graph, made to compute its matrix products in fewer bits; parameters, inputs and outputs stay float32."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from typing import Any, Collection, Iterator, Mapping, Sequence

from .compat import mx

__all__ = ["Rules", "lower"]

Entry = list[int]  # a node's number, which of its outputs, and MXNet's version of it: 0
FULL = "float32"


@dataclass(frozen=True)
class Rules:
    """What an operator does with a graph's lower precision.

    Attributes
    ----------
    low : collection of str
        Operators whose inputs are cast to the lower precision.
    kept : collection of str
        Operators that take either precision, and return what they are given.
    unless : mapping of str to (str, collection of str)
        Of these, an attribute and its values with which they need float32 all the same.
    mixed : collection of str
        Those of `kept` whose other inputs than the first stay as they are (the statistics of BatchNorm).

    All other operators get float32.
    """

    low: Collection[str]
    kept: Collection[str]
    unless: Mapping[str, tuple[str, Collection[str]]]
    mixed: Collection[str] = ()

    def keeps(self, node: Mapping[str, Any]) -> bool:
        """Whether an operator may compute in the precision of its inputs."""
        attribute, values = self.unless.get(node["op"], ("", ()))
        return node["op"] in self.kept and node.get("attrs", {}).get(attribute) not in values


def lower(symbols: Sequence[Any], dtype: str, rules: Rules) -> tuple[list[Any], int]:
    """Return the same symbols, computed in `dtype` where the rules say so.

    The graph alone is another one: it casts what its operators are given, parameters included, and casts its
    outputs back. MXNet's ``amp_cast`` does it, which passes a gradient back in the precision of what was
    cast: a parameter that is float32 gets its gradient in float32. Unlike ``mx.contrib.amp.init`` this
    changes nothing outside of the graph; unlike ``amp.convert_symbol`` it leaves no operator without casts
    that might lack a kernel for `dtype`.

    Parameters
    ----------
    symbols : sequence of Symbol
        Outputs of one graph.
    dtype : str
        ``"bfloat16"`` or ``"float16"``.
    rules : Rules
        Which operators compute in it.

    Returns
    -------
    list of Symbol, int
        The symbols, of the same variables, and how many operators compute in the lower precision.
    """
    made = [symbol for symbol in symbols if not _is_variable(symbol)]
    if not made:
        return list(symbols), 0
    group = mx.sym.Group(made)
    graph, writer = json.loads(group.tojson()), _Writer(dtype, rules)
    for node in graph["nodes"]:
        writer.add(node)
    read = mx.sym.load_json(json.dumps({**graph, **writer.graph(graph["heads"])}))
    # It has variables of its own: other nodes, to MXNet, than those that the rest of the graph shares.
    heads = iter(read(**{each.name: each for each in group.get_internals() if _is_variable(each)}))
    return [symbol if _is_variable(symbol) else _next(heads, symbol) for symbol in symbols], writer.count


def _is_variable(symbol: Any) -> bool:
    # an operator without inputs, such as arange, has no children either
    return symbol.get_children() is None and symbol.list_inputs() == [symbol.name]


def _next(heads: Iterator[Any], symbol: Any) -> Any:
    """Return as many of the heads as a symbol has outputs: ``F.split`` makes one of several."""
    own = list(islice(heads, len(symbol.list_outputs())))
    return own[0] if len(own) == 1 else mx.sym.Group(own)


class _Writer:
    """Copies a graph node by node, with casts between them.

    Parameters
    ----------
    dtype, rules
        As :func:`lower` takes them.
    """

    def __init__(self, dtype: str, rules: Rules) -> None:
        self.dtype, self.rules = dtype, rules
        self.nodes: list[dict[str, Any]] = []
        self.count = 0
        self._numbers: list[int] = []  # of the nodes that were copied, in the new graph
        self._low: set[int] = set()  # nodes of the new graph whose outputs are in the lower precision
        self._casts: dict[tuple[int, int, str], Entry] = {}

    def add(self, node: Mapping[str, Any]) -> None:
        """Copy the next node; what it is given comes before it."""
        inputs = [self._moved(entry) for entry in node["inputs"]]
        low = [entry[0] in self._low for entry in inputs]
        if node["op"] in self.rules.low:
            inputs, lowered = [self._cast(entry, self.dtype) for entry in inputs], True
        else:
            deciding = low[:1] if node["op"] in self.rules.mixed else low
            lowered = self.rules.keeps(node) and bool(deciding) and all(deciding)
            inputs = inputs if lowered else [self._cast(entry, FULL) for entry in inputs]
        self._numbers.append(self._append({**node, "inputs": inputs}, lowered))
        self.count += lowered

    def graph(self, heads: Sequence[Entry]) -> dict[str, Any]:
        """Return the nodes with what MXNet's format asks for; `heads` are those of the graph read."""
        ends = [self._cast(self._moved(head), FULL) for head in heads]
        variables = [number for number, node in enumerate(self.nodes) if node["op"] == "null"]
        rows = list(range(len(self.nodes) + 1))
        return {"nodes": self.nodes, "arg_nodes": variables, "node_row_ptr": rows, "heads": ends}

    def _moved(self, entry: Entry) -> Entry:
        return [self._numbers[entry[0]], *entry[1:]]

    def _append(self, node: dict[str, Any], lowered: bool) -> int:
        self.nodes.append(node)
        if lowered:
            self._low.add(len(self.nodes) - 1)
        return len(self.nodes) - 1

    def _cast(self, entry: Entry, dtype: str) -> Entry:
        number, output = entry[:2]
        if (number in self._low) == (dtype != FULL):
            return entry
        key = number, output, dtype
        if key not in self._casts:
            name = f"{self.nodes[number]['name']}_{output}_{dtype}"
            if dtype != FULL:
                # The way back through amp_cast loses a gradient that is to be added to another: where batches
                # are accumulated, and, with static_alloc, where nine operators take the same array.
                alike = {"op": "_copy", "name": f"{name}_of", "inputs": [entry]}
                entry = [self._append(alike, False), 0, 0]
            cast = {"op": "amp_cast", "name": name, "attrs": {"dtype": dtype}, "inputs": [entry]}
            self._casts[key] = [self._append(cast, dtype != FULL), 0, 0]
        return self._casts[key]
