"""A graph, made to compute its matrix products in fewer bits; parameters, inputs and outputs stay float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Collection, Mapping, Sequence

from .rewriting import Entry, Node, Rewriter

__all__ = ["Rules", "lower"]

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

    def keeps(self, node: Node) -> bool:
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
        ``"bfloat16"``.
    rules : Rules
        Which operators compute in it.

    Returns
    -------
    list of Symbol, int
        The symbols, of the same variables, and how many operators compute in the lower precision.
    """
    lowering = _Lowering(dtype, rules)
    return lowering.rewrite(symbols), lowering.count


class _Lowering(Rewriter):
    """Adds casts between operators.

    Parameters
    ----------
    dtype, rules
        As :func:`lower` takes them.
    """

    def __init__(self, dtype: str, rules: Rules) -> None:
        super().__init__()
        self.dtype, self.rules = dtype, rules
        self._low: set[int] = set()  # nodes of the new graph whose outputs are in the lower precision
        self._casts: dict[tuple[int, int, str], Entry] = {}

    def replace(self, node: Node) -> int:
        """Add a node, behind the casts that it needs."""
        inputs = node["inputs"]
        low = [entry[0] in self._low for entry in inputs]
        if node["op"] in self.rules.low:
            inputs, lowered = [self._cast(entry, self.dtype) for entry in inputs], True
        else:
            deciding = low[:1] if node["op"] in self.rules.mixed else low
            lowered = self.rules.keeps(node) and bool(deciding) and all(deciding)
            inputs = inputs if lowered else [self._cast(entry, FULL) for entry in inputs]
        self.count += lowered
        return self._append({**node, "inputs": inputs}, lowered)

    def end(self, entry: Entry) -> Entry:
        """Return an output in float32."""
        return self._cast(entry, FULL)

    def _append(self, node: Node, lowered: bool) -> int:
        number = self.append(node)
        if lowered:
            self._low.add(number)
        return number

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
