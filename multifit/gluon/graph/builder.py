"""Build a graph in MXNet's JSON format from the nodes of another graph."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..compat import mx

Node = dict[str, Any]
"""An operator or a variable: ``op``, ``name``, ``attrs`` and ``inputs``."""
Entry = tuple[int, int]
"""An output of a node: the node's number, and the output's number."""
Input = list[int]
"""An entry as the input of a node: with a version, which is always 0."""


def moved(inputs: Sequence[Input], numbers: Sequence[int]) -> list[Input]:
    """Return a node's inputs as entries of a copy, where the node with number n has ``numbers[n]``."""
    return [[numbers[node], *rest] for node, *rest in inputs]


class GraphBuilder:
    """Builds a graph from the nodes of another graph, `graph`."""

    def __init__(self, graph: Mapping[str, Any]) -> None:
        self._graph, self._nodes = graph, list[Node]()
        self._at: dict[Any, int] = {}  # by the number of a node of the other graph, or by a variable's name

    def append(self, node: Node) -> int:
        """Add a node and return its number; its inputs must have been added before."""
        self._nodes.append(node)
        return len(self._nodes) - 1

    def add(self, node: int, inputs: list[Input], bias_apart: bool = False) -> None:
        """Add a node of the other graph with new inputs."""
        self._at[node] = self.copy(self._graph["nodes"][node], inputs, bias_apart)

    def copy(self, node: Node, inputs: list[Input], bias_apart: bool = False) -> int:
        """Add a copy of a node with new inputs; return its number.

        With `bias_apart`, the node must be a dense layer; its bias is then added by a separate operator.
        """
        if not bias_apart:
            return self.append({**node, "inputs": inputs})
        name, attributes = node["name"], {**node["attrs"], "no_bias": "True"}
        product = {**node, "name": f"{name}_product", "attrs": attributes, "inputs": inputs[:2]}
        entry = [self.append(product), 0, 0]
        return self.append({"op": "broadcast_add", "name": name, "inputs": [entry, inputs[2]]})

    def copied(self, entry: Entry) -> Input:
        """Return an entry of the other graph in this one; a variable that is missing is added."""
        node, out = entry
        if node not in self._at:
            self.add(node, [])
        return [self._at[node], out, 0]

    def variable(self, name: str) -> Input:
        """Return the variable with a name; it is added if it is missing."""
        if name not in self._at:
            self._at[name] = self.append({"op": "null", "name": name, "inputs": []})
        return [self._at[name], 0, 0]

    def identity(self, entry: Input) -> Input:
        """Return a copy of an entry."""
        return self.operator("_copy", entry)

    def operator(self, op: str, *inputs: Input, **attributes: str) -> Input:
        """Return the result of a new operator on entries."""
        name = f"cut_{op.strip('_').lower()}{len(self._nodes)}"
        node = {"op": op, "name": name, "attrs": attributes, "inputs": list(inputs)}
        return [self.append(node), 0, 0]

    def name(self, number: int) -> str:
        """Return the name of a node that was added."""
        return str(self._nodes[number]["name"])

    def symbol(self, heads: list[Input]) -> Any:
        """Return the symbol whose outputs are `heads`."""
        return mx.sym.load_json(json.dumps(self.graph(heads)))

    def graph(self, heads: list[Input]) -> dict[str, Any]:
        """Return the graph whose outputs are `heads`."""
        variables = [i for i, node in enumerate(self._nodes) if node["op"] == "null"]
        rows = list(range(len(self._nodes) + 1))
        fields = {"nodes": self._nodes, "heads": heads, "arg_nodes": variables, "node_row_ptr": rows}
        return {**self._graph, **fields}
