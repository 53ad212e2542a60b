"""Cut a traced graph where its tasks branch: into a body that several tasks share, and the rest."""

from __future__ import annotations

import json
from typing import Any, Collection, Mapping, NamedTuple, Optional, Sequence

from ..graph_builder import Entry, GraphBuilder, Input, Node

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
Copies = dict[Optional[int], str]


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
    learns = _depend_on(nodes, {i for i, node in enumerate(nodes) if node["name"] in trained})
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


def _depend_on(nodes: Sequence[Node], roots: Collection[int]) -> list[bool]:
    depends: list[bool] = []
    for i, node in enumerate(nodes):
        depends.append(i in roots or any(depends[source] for source, *_ in node["inputs"]))
    return depends


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
