"""Rewrite a graph to compute in a lower precision; parameters, inputs and outputs stay float32."""

from __future__ import annotations

from collections.abc import Sequence

from ..compat import mx
from .rewriting import Entry, Node, rewrite
from .rules import Rules

FLOAT32 = "float32"


def lower(symbols: Sequence[mx.sym.Symbol], dtype: str, rules: Rules) -> tuple[list[mx.sym.Symbol], int]:
    """Return the outputs of a graph, computed in `dtype` where the rules allow it.

    The new graph casts the inputs of its operators, parameters included, and casts its outputs back. It uses
    MXNet's ``amp_cast``, whose gradient has the dtype of its input: float32 parameters get float32 gradients.
    Unlike ``mx.contrib.amp.init`` this changes nothing outside of the graph. Unlike ``amp.convert_symbol`` it
    also casts the inputs of operators that are in no list and may have no kernel for `dtype`.

    Parameters
    ----------
    symbols : sequence of Symbol
        Outputs of one graph.
    dtype : str
        The lower precision, such as ``"bfloat16"``.
    rules : Rules
        Which operators compute in it.

    Returns
    -------
    symbols : list of Symbol
        The outputs, with the same variables.
    count : int
        The number of operators that compute in `dtype`.
    """
    builder = _LoweredGraph(dtype, rules)
    return rewrite(symbols, builder), builder.count


class _LoweredGraph:
    """A :class:`~multifit.gluon.precision.rewriting.GraphBuilder` that adds the casts.

    Attributes
    ----------
    nodes : list of Node
        See GraphBuilder.
    count : int
        The number of operators that compute in the lower precision.
    """

    def __init__(self, dtype: str, rules: Rules) -> None:
        self.nodes: list[Node] = []
        self.count = 0
        self._dtype, self._rules = dtype, rules
        self._low: set[int] = set()  # the nodes whose outputs are in the lower precision
        self._casts: dict[tuple[int, int, str], Entry] = {}

    def add(self, node: Node) -> int:
        """Add a node, behind the casts that its inputs need."""
        inputs, is_low = node["inputs"], True
        if node["op"] in self._rules.low:
            inputs = [self._cast(entry, self._dtype) for entry in inputs]
        elif not self._stays_low(node):
            inputs, is_low = [self._cast(entry, FLOAT32) for entry in inputs], False
        self.count += is_low
        return self._append({**node, "inputs": inputs}, is_low)

    def output(self, entry: Entry) -> Entry:
        """Return an output in float32."""
        return self._cast(entry, FLOAT32)

    def _stays_low(self, node: Node) -> bool:
        """Whether an operator gets inputs in the lower precision and can compute in it."""
        inputs = node["inputs"][:1] if node["op"] in self._rules.first_input_only else node["inputs"]
        all_low = bool(inputs) and all(entry[0] in self._low for entry in inputs)
        return all_low and self._rules.takes_either(node["op"], node.get("attrs", {}))

    def _append(self, node: Node, is_low: bool) -> int:
        self.nodes.append(node)
        number = len(self.nodes) - 1
        if is_low:
            self._low.add(number)
        return number

    def _cast(self, entry: Entry, dtype: str) -> Entry:
        """Return an entry in `dtype`; each is cast once, however many operators take it."""
        number, output = entry[:2]
        if (number in self._low) == (dtype != FLOAT32):
            return entry
        key = number, output, dtype
        if key not in self._casts:
            name = f"{self.nodes[number]['name']}_{output}_{dtype}"
            if dtype != FLOAT32:
                # amp_cast's gradient overwrites what it should be added to: if gradients accumulate and, with
                # static_alloc, if nine operators take the same array. The gradient of a copy does not.
                copy = {"op": "_copy", "name": f"{name}_of", "inputs": [entry]}
                entry = [self._append(copy, is_low=False), 0, 0]
            cast = {"op": "amp_cast", "name": name, "attrs": {"dtype": dtype}, "inputs": [entry]}
            self._casts[key] = [self._append(cast, is_low=dtype != FLOAT32), 0, 0]
        return self._casts[key]
