"""Cuts a graph where tasks branch."""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from .builder import Entry, GraphBuilder, Input, Node, moved


class CutLayout(NamedTuple):
    """Numbers the arrays that the parts of a cut graph take, in one list.

    The list holds the whole graph's arguments, then copies of the body's outputs, then `in_both`: the
    arguments that both parts take, once more. `body` and `rest` are the numbers of each part's inputs.
    `copied` is, for each copy, the number of the body's output. `features` are the outputs of the body that
    tasks take, `tasks` are these tasks for each of them, and `taken` are their copies, by number.
    """

    body: list[int]
    rest: list[int]
    in_both: list[int]
    copied: list[int]
    features: list[int]
    tasks: list[list[int]]
    taken: list[int]


def cut_layout(cut: Cut, inputs: Sequence[str]) -> CutLayout:
    """Return the layout of a cut graph, whose inputs before it was cut were `inputs`."""
    copies = [(number, task) for number, variables in enumerate(cut.copies) for task in variables]
    names = [*inputs, *(cut.copies[number][task] for number, task in copies)]
    at = {name: position for position, name in enumerate(names)}
    body, in_both = [at[name] for name in cut.body.list_inputs()], list[int]()
    for name in cut.rest.list_inputs():
        if at[name] in body:
            in_both.append(at[name])
            at[name] = len(names) + len(in_both) - 1
    rest = [at[name] for name in cut.rest.list_inputs()]
    takers = [sorted(task for task in variables if task is not None) for variables in cut.copies]
    features = [number for number, tasks in enumerate(takers) if tasks]
    taken = [copies.index((number, task)) for number in features for task in takers[number]]
    tasks = [takers[number] for number in features]
    return CutLayout(body, rest, in_both, [number for number, _ in copies], features, tasks, taken)


# Operators through which no gradient flows. If one is missing here, the body gets larger, but not wrong.
STOPS = {
    "BlockGrad", "stop_gradient", "_zeros", "_ones", "zeros_like", "ones_like", "argmax", "argmin", "one_hot",
    "sign", "round", "rint", "floor", "ceil", "trunc", "fix", "shape_array", "size_array", "argsort",
}  # fmt: skip
TOPK_STOPS = {"indices", "mask"}  # topk's other results are values, through which a gradient flows


def stops(node: Node) -> bool:
    """Return whether no gradient flows through an operator."""
    if node["op"] == "topk":
        return node.get("attrs", {}).get("ret_typ", "indices") in TOPK_STOPS
    return node["op"] in STOPS


def learning(nodes: Sequence[Node], parameters: Collection[str]) -> list[bool]:
    """Return for each node whether its gradient reaches one of the parameters."""
    learns: list[bool] = []
    for node in nodes:
        passes = not stops(node) and any(learns[source] for source, *_ in node["inputs"])
        learns.append(node["name"] in parameters if node["op"] == "null" else passes)
    return learns


def learns_bias_alone(node: Node, learns: Sequence[bool]) -> bool:
    """Return whether an operator is a dense layer whose bias learns, but whose weight does not.

    `learns` says for each node whether its gradient reaches a trained parameter. The bias must then be added
    by an operator of its own: on CPUs, MXNet's FullyConnected computes the gradient of the bias only together
    with that of the weight.
    """
    if node["op"] != "FullyConnected" or len(node["inputs"]) < 3:
        return False
    weight, bias = (learns[source] for source, *_ in node["inputs"][1:])
    return bias and not weight


# The variables of the rest that take one output of the body, by task; None where no gradient is wanted.
Copies = dict[int | None, str]


class Cut(NamedTuple):
    """A graph cut in two.

    `body` computes the arrays where the tasks branch; from these, `rest` computes the outputs of the whole
    graph. `copies` are, for each output of the body, the variables of the rest that take it, by task; the key
    None is for a variable that no task's gradient reaches. `shared` are the parameters that the gradients of
    several tasks reach.
    """

    body: Any
    rest: Any
    copies: list[Copies]
    shared: list[str]


def cut_graph(symbol: str, tasks: Sequence[int | None], trained: Collection[str]) -> Cut | None:
    """Cut a graph where the tasks of its outputs branch; return None if they share no parameter.

    `symbol` is the graph in JSON. `tasks` are the tasks of its outputs, None for an output without one.
    `trained` are the names of the variables that are parameters with a gradient. Operators that depend on no
    trained parameter are not shared. If a task also uses a shared parameter outside of the body, it gets the
    parameter as an output of the body.
    """
    graph = json.loads(symbol)
    nodes: list[Node] = graph["nodes"]
    reached = _reached(graph, tasks)
    learns = learning(nodes, trained)
    is_shared = [len(each) > 1 and learned for each, learned in zip(reached, learns)]
    shared = [i for i, node in enumerate(nodes) if node["op"] == "null" and is_shared[i]]
    if not shared:
        return None
    body = _ancestors(nodes, [i for i, each in enumerate(is_shared) if each])
    parameters = {i for i in body if nodes[i]["name"] in trained}
    return Cut(*_split(graph, body, parameters, reached, learns), [nodes[i]["name"] for i in shared])


def learning_variables(symbol: str, learns: Sequence[bool]) -> set[str]:
    """Return the variables of a graph that a gradient reaches; `learns` says which outputs have one."""
    graph = json.loads(symbol)
    reached = _reached(graph, [0 if each else None for each in learns])
    return {node["name"] for node, tasks in zip(graph["nodes"], reached) if node["op"] == "null" and tasks}


def _reached(graph: Mapping[str, Any], tasks: Sequence[int | None]) -> list[set[int]]:
    """Return for every node the tasks from whose outputs a gradient flows to it."""
    nodes = graph["nodes"]
    reached: list[set[int]] = [set() for _ in nodes]
    for (node, *_), task in zip(graph["heads"], tasks):
        reached[node] |= set() if task is None else {task}
    for i in range(len(nodes) - 1, -1, -1):  # nodes come after their inputs
        if not stops(nodes[i]):
            for source, *_ in nodes[i]["inputs"]:
                reached[source] |= reached[i]
    return reached


def _ancestors(nodes: Sequence[Node], of: Collection[int]) -> set[int]:
    ancestors = set(of)
    for i in range(len(nodes) - 1, -1, -1):
        if i in ancestors:
            ancestors.update(source for source, *_ in nodes[i]["inputs"])
    return ancestors


def _split(
    graph: Mapping[str, Any],
    body: set[int],
    parameters: set[int],
    reached: Sequence[set[int]],
    learns: Sequence[bool],
) -> tuple[Any, Any, list[Copies]]:
    """Return the fields of the cut but `shared`; the rest takes the body's `parameters` as outputs of it.

    The rest takes an output of the body without a gradient if no parameter of the body learns from it.
    """
    nodes = graph["nodes"]
    copies: dict[Entry, Copies] = {}  # by output of the body
    rest = GraphBuilder(graph)

    def taken(entry: Entry, task: int | None) -> Input:
        """Return the variable of the rest that stands for an entry of the body."""
        name = f"cut{entry[0]}_{entry[1]}_{'none' if task is None else task}"
        return rest.variable(copies.setdefault(entry, {}).setdefault(task, name))

    def source(entry: Entry, task: int | None) -> Input:
        is_plain_variable = nodes[entry[0]]["op"] == "null" and entry[0] not in parameters
        if entry[0] in body and not is_plain_variable:
            return taken(entry, task if learns[entry[0]] else None)
        return rest.copied(entry)

    for i, node in enumerate(nodes):
        if node["op"] != "null" and i not in body:
            task = None if stops(node) else next(iter(reached[i]), None)
            inputs = [source((at, out), task) for at, out, *_ in node["inputs"]]
            rest.add(i, inputs, bias_apart=learns_bias_alone(node, learns))
    heads = [
        rest.identity(source((at, out), None)) if at in body else rest.copied((at, out))
        for at, out, *_ in graph["heads"]
    ]
    return _body(graph, body, parameters, list(copies)), rest.symbol(heads), list(copies.values())


def _body(graph: Mapping[str, Any], body: set[int], parameters: set[int], outputs: Sequence[Entry]) -> Any:
    """Return the graph of the body; an output must not be a variable itself."""
    builder = GraphBuilder(graph)
    for i in sorted(body):
        builder.add(i, [builder.copied((at, out)) for at, out, *_ in graph["nodes"][i]["inputs"]])
    copied = [builder.copied(entry) for entry in outputs]
    pairs = zip(outputs, copied)
    return builder.symbol([builder.identity(head) if at in parameters else head for (at, _), head in pairs])


def has_operator(symbol: Any, operator: str) -> bool:
    """Whether a graph has an operator."""
    return any(node["op"] == operator for node in json.loads(symbol.tojson())["nodes"])


def repeatable(symbol: Any) -> Any:
    """Return a training graph of which any number of backward passes are right.

    MXNet's Dropout is the identity in every backward pass but the first. It becomes a product with a mask
    that the forward pass draws.
    """
    graph = json.loads(symbol.tojson())
    builder, positions = GraphBuilder(graph), list[int]()
    for node in graph["nodes"]:
        drops = node["op"] == "Dropout" and float(node.get("attrs", {}).get("p", 0.5)) > 0
        add = _masked if drops else GraphBuilder.copy
        positions.append(add(builder, node, moved(node["inputs"], positions)))
    return builder.symbol(moved(graph["heads"], positions))


def _masked(builder: GraphBuilder, node: Node, inputs: list[Input]) -> int:
    """Add the product that replaces a Dropout, which draws one number for all elements along its `axes`."""
    attributes = node.get("attrs", {})
    keep = 1 - float(attributes.get("p", 0.5))
    like = inputs[0]
    for axis in literal_eval(attributes.get("axes", "()")):
        like = builder.operator("slice_axis", like, axis=str(axis), begin="0", end="1")
    drawn = builder.operator("_random_uniform_like", like)
    kept = builder.operator("_lesser_scalar", drawn, scalar=str(keep))
    mask = builder.operator("_mul_scalar", kept, scalar=str(1 / keep if keep else 0))
    product = [inputs[0], builder.operator("BlockGrad", mask)]
    return builder.append({"op": "broadcast_mul", "name": node["name"], "inputs": product})


def as_json(symbol: Any) -> str:
    """Return a symbol in JSON with its casts to a lower precision, which MXNet leaves out by default."""
    return str(symbol.tojson(remove_amp_cast=False))
