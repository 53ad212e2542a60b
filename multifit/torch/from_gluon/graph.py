"""An MXNet symbol as plain data, read from its JSON."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Output = tuple[int, int]  # (index of a node, number of one of its outputs)


@dataclass(frozen=True)
class Node:
    """A variable or a call of an operator.

    Parameters
    ----------
    name : str
        The name in the symbol.
    operator : str
        MXNet's name of the operator; "null" for a variable.
    attributes : mapping of str to str
        The operator's attributes as MXNet writes them, without annotations such as ``__shape__``.
    inputs : tuple of (int, int)
        The outputs of other nodes with which it is called.
    place : str
        The block and the line that call the operator, if the net was recorded.
    """

    name: str
    operator: str
    attributes: Mapping[str, str]
    inputs: tuple[Output, ...]
    place: str = ""

    @property
    def is_variable(self) -> bool:
        """Whether its value is given from outside."""
        return self.operator == "null"


@dataclass(frozen=True)
class Graph:
    """A symbol.

    Parameters
    ----------
    nodes : tuple of Node
        Each node comes after its inputs.
    heads : tuple of (int, int)
        The outputs of the symbol.
    """

    nodes: tuple[Node, ...]
    heads: tuple[Output, ...]

    @property
    def variables(self) -> list[str]:
        """The names of all variables, in the order of the nodes."""
        return [node.name for node in self.nodes if node.is_variable]

    def calls(self) -> Iterator[tuple[int, Node]]:
        """Yield the index and the node of each call of an operator."""
        return ((at, node) for at, node in enumerate(self.nodes) if not node.is_variable)


def read_graph(symbol: str) -> Graph:
    """Return the graph of what ``symbol.tojson()`` returns."""
    source = json.loads(symbol)
    nodes = tuple(
        Node(
            node["name"],
            node["op"],
            {k: v for k, v in node.get("attrs", {}).items() if not k.startswith("__")},
            tuple((at, output) for at, output, *_ in node["inputs"]),
            node.get("attrs", {}).get("__place__", ""),
        )
        for node in source["nodes"]
    )
    return Graph(nodes, tuple((at, output) for at, output, *_ in source["heads"]))
