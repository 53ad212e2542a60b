"""Rewrite the operators of a traced graph whose gradients MXNet computes wrongly."""

from __future__ import annotations

import json
from typing import Any, Callable, Mapping, Optional

from ..graph_builder import GraphBuilder, Input, Node
from .traced_graph import as_json

Correction = Callable[[GraphBuilder, Node, "list[Input]"], int]

# The constants of Klambauer et al.: Self-Normalizing Neural Networks. 2017, arXiv:1706.02515.
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def correct_gradients(symbol: Any) -> Any:
    """Return a graph with the same outputs, whose gradients are right.

    In MXNet 1.9.1, PReLU and hard_sigmoid write the gradient of their input over that of their output, which
    PReLU's slope, or another operator, still needs. SELU's gradient is wrong for negative inputs. `symbol`
    itself is returned if it has none of these operators.
    """
    graph = json.loads(as_json(symbol))
    if not any(map(_correction, graph["nodes"])):
        return symbol
    builder = GraphBuilder(graph)
    places: list[int] = []  # in the new graph, by number in the old one

    def moved(inputs: list[Input]) -> list[Input]:
        return [[places[node], *rest] for node, *rest in inputs]

    for node in graph["nodes"]:
        add = _correction(node) or _unchanged
        places.append(add(builder, node, moved(node["inputs"])))
    return builder.symbol(moved(graph["heads"]))


def _correction(node: Node) -> Optional[Correction]:
    """Return what adds a node in another form; None if its gradient is right."""
    name = _attributes(node).get("act_type") if node["op"] == "LeakyReLU" else node["op"]
    return _CORRECTIONS.get(name or "")


def _attributes(node: Node) -> Mapping[str, str]:
    return node.get("attrs", {})


def _unchanged(builder: GraphBuilder, node: Node, inputs: list[Input]) -> int:
    return builder.append({**node, "inputs": inputs})


def _prelu(builder: GraphBuilder, node: Node, inputs: list[Input]) -> int:
    """Compute each gradient by an operator of its own; the second one adds 0 to the output."""
    x, slope = inputs
    attributes = _attributes(node)
    output = builder.operator("LeakyReLU", x, builder.operator("BlockGrad", slope), **attributes)
    same = builder.operator("LeakyReLU", builder.operator("BlockGrad", x), slope, **attributes)
    zero = builder.operator("elemwise_sub", same, builder.operator("BlockGrad", same))
    return builder.append({"op": "elemwise_add", "name": node["name"], "inputs": [output, zero]})


def _selu(builder: GraphBuilder, node: Node, inputs: list[Input]) -> int:
    """Scale an ELU, whose gradient is right."""
    elu = builder.operator("LeakyReLU", *inputs, act_type="elu", slope=repr(SELU_ALPHA))
    return _scaled(builder, node, elu, SELU_SCALE)


def _hard_sigmoid(builder: GraphBuilder, node: Node, inputs: list[Input]) -> int:
    """Multiply the output by 1, so that the gradient that is overwritten is no other operator's."""
    output = builder.operator("hard_sigmoid", *inputs, **_attributes(node))
    return _scaled(builder, node, output, 1.0)


def _scaled(builder: GraphBuilder, node: Node, entry: Input, factor: float) -> int:
    """Add a multiple of an entry as the output of a node that is replaced."""
    attributes = {"scalar": repr(factor)}
    return builder.append({"op": "_mul_scalar", "name": node["name"], "attrs": attributes, "inputs": [entry]})


_CORRECTIONS = {"prelu": _prelu, "selu": _selu, "hard_sigmoid": _hard_sigmoid}
