"""Rewrite the operators of a traced graph whose gradients MXNet computes wrongly."""

import json
from ast import literal_eval
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from ..compat import mx
from .builder import GraphBuilder, Input, Node, moved
from .cut import as_json, learning, learns_bias_alone

Correction = Callable[[GraphBuilder, Node, "list[Input]"], int]

# The constants of Klambauer et al.: Self-Normalizing Neural Networks. 2017, arXiv:1706.02515.
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805

# Operators that overwrite a parameter's gradient to which they should add (`grad_req` "add"), as do _linalg_*
_OVERWRITE = {"_np_cumsum", "amp_cast", "clip", "mean", "moments", "reverse"}


def correct_gradients(symbol: Any, trained: Collection[str] = ()) -> Any:
    """Return a graph with the same outputs, whose gradients are right.

    In MXNet 1.9.1, PReLU and hard_sigmoid write the gradient of their input over that of their output, which
    PReLU's slope, or another operator, still needs. SELU's gradient is wrong for negative inputs.

    Other operators are wrong only where they take a variable itself; they take a copy of it here. Both
    arguments of elemwise_add share one gradient, in the memory of a variable's gradient if one argument is a
    variable: there is none if that needs no gradient, and it holds a sum if its gradients accumulate. The
    operators in `_OVERWRITE` overwrite a gradient to which they should add.

    A dense layer of which only the bias learns, on CPUs, gives its bias no gradient; it is added apart.

    `trained` names the parameters that have a gradient. `symbol` itself is returned if nothing is wrong.

    The bodies of loops are corrected too: the gradients of all their variables accumulate.

    Global pooling of images gets a reshape before it, which changes nothing but the layout of its gradient in
    memory: on CPUs, convolutions before it would take four times as long to run backward.
    """
    graph = json.loads(as_json(symbol))
    corrected = _corrected(graph, trained)
    return symbol if corrected is graph else mx.sym.load_json(json.dumps(corrected))


def uncorrected(symbol: Any, trained: Collection[str] | None = None) -> list[str]:
    """Return the operators in a graph whose gradients stay wrong, if they are needed: "cond", "while_loop".

    MXNet 1.9.1 leaves the gradients of the branch that was not taken, and of inputs of a loop that need none,
    as they were in memory. `trained` names the variables that have a gradient; None means all.
    """
    nodes = json.loads(as_json(symbol))["nodes"]
    learns = learning(nodes, [node["name"] for node in nodes] if trained is None else trained)
    operators = [node["op"] for node, each in zip(nodes, learns) if each]
    return [operator[1:] for operator in operators if operator in ("_cond", "_while_loop")]


def _corrected(graph: dict[str, Any], trained: Collection[str]) -> dict[str, Any]:
    nodes = [_with_bodies(node) for node in graph["nodes"]]
    copied = _copied(nodes, trained)
    learns = learning(nodes, trained)
    additions = [_CORRECTIONS.get(_variant(node), GraphBuilder.copy) for node in nodes]
    for number, node in enumerate(nodes):
        if learns_bias_alone(node, learns):
            additions[number] = partial(GraphBuilder.copy, bias_apart=True)
    same = all(one is other for one, other in zip(nodes, graph["nodes"]))
    if same and not copied and all(add is GraphBuilder.copy for add in additions):
        return graph
    builder = GraphBuilder(graph)
    numbers: list[int] = []  # in the new graph, by number in the old one
    copies: dict[int, Input] = {}  # of variables, by number in the old one

    for number, node in enumerate(nodes):
        inputs = moved(node["inputs"], numbers)
        if _takes_copies(node):
            inputs = [copies.get(old, new) for (old, *_), new in zip(node["inputs"], inputs)]
        numbers.append(additions[number](builder, node, inputs))
        if number in copied:
            copies[number] = builder.identity([numbers[number], 0, 0])
    return builder.graph(moved(graph["heads"], numbers))


def _with_bodies(node: Node) -> Node:
    """Return a node, of which the bodies of a loop are corrected."""
    bodies = node.get("subgraphs", [])
    names = [[each["name"] for each in body["nodes"] if each["op"] == "null"] for body in bodies]
    corrected = [_corrected(body, variables) for body, variables in zip(bodies, names)]
    changed = any(one is not other for one, other in zip(bodies, corrected))
    return {**node, "subgraphs": corrected} if changed else node


def _copied(nodes: Sequence[Node], trained: Collection[str]) -> set[int]:
    """Return the numbers of the variables of which operators take copies."""
    pairs = [(source, node["op"]) for node in nodes if _takes_copies(node) for source, *_ in node["inputs"]]
    return {
        source
        for source, operator in pairs
        if nodes[source]["op"] == "null" and (operator == "elemwise_add" or nodes[source]["name"] in trained)
    }


def _takes_copies(node: Node) -> bool:
    operator = node["op"]
    return operator == "elemwise_add" or operator in _OVERWRITE or operator.startswith("_linalg_")


def _variant(node: Node) -> str:
    """Return the name of an operator, with what distinguishes its variants."""
    operator = str(node["op"])
    if operator == "Pooling" and _attributes(node).get("global_pool") == "True":
        return f"global Pooling {len(literal_eval(_attributes(node).get('kernel', '()')))}"
    return f"LeakyReLU {_attributes(node).get('act_type', 'leaky')}" if operator == "LeakyReLU" else operator


def _attributes(node: Node) -> Mapping[str, str]:
    return node.get("attrs", {})


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
    """Multiply the output by 1: the gradient that hard_sigmoid overwrites is then read by nothing else."""
    output = builder.operator("hard_sigmoid", *inputs, **_attributes(node))
    return _scaled(builder, node, output, 1.0)


def _global_pooling(builder: GraphBuilder, node: Node, inputs: list[Input]) -> int:
    """Keep the number of every axis in a reshape before the pooling."""
    return builder.copy(node, [builder.operator("Reshape", *inputs, shape="(-2,)")])


def _scaled(builder: GraphBuilder, node: Node, entry: Input, factor: float) -> int:
    """Add a multiple of an entry as the output of a node that is replaced."""
    attributes = {"scalar": repr(factor)}
    return builder.append({"op": "_mul_scalar", "name": node["name"], "attrs": attributes, "inputs": [entry]})


_CORRECTIONS: dict[str, Correction] = {
    "LeakyReLU prelu": _prelu,
    "LeakyReLU selu": _selu,
    "hard_sigmoid": _hard_sigmoid,
    "global Pooling 2": _global_pooling,
}
