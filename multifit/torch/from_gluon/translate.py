"""Translate a symbol of MXNet to a module of torch that computes the same, with a node for each operator."""

from __future__ import annotations

import json
import keyword
import linecache
import operator
import re
import weakref
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import fx

from ...utils.errors import Problem, raise_problems
from ...utils.text import counted, quoted
from .attributes import AttributeProblem, Tensor, read_attributes, returns_tuple, table
from .operators import OPERATORS

# names that the code of torch.fx and of exported files uses
USED_BY_CODE = frozenset([*keyword.kwlist, "self", "_ops", "torch", "getattr", "inf", "nan", "device"])
Output = tuple[int, int]  # (index of a node, number of one of its outputs)


@dataclass(frozen=True)
class Node:
    """A call of an operator, or a variable, whose operator is "null"; `place` is the line that calls it."""

    name: str
    operator: str
    attributes: Mapping[str, str]
    inputs: tuple[Output, ...]
    place: str


@dataclass(frozen=True)
class Graph:
    """A symbol: its nodes, each after its inputs, and the outputs that it returns."""

    nodes: tuple[Node, ...]
    heads: tuple[Output, ...]

    def calls(self) -> list[Node]:
        """Return the calls of operators."""
        return [node for node in self.nodes if node.operator != "null"]


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


def untranslated(symbol: str) -> list[Problem]:
    """Return the operators of a symbol, and the values of attributes, that cannot be translated."""
    found: dict[tuple[str, str], list[Node]] = defaultdict(list)
    for node in read_graph(symbol).calls():
        if node.operator not in OPERATORS:
            found[node.operator, "it has no translation"].append(node)
            continue
        try:
            read_attributes(OPERATORS[node.operator], node.attributes)
        except AttributeProblem as problem:
            found[node.operator, str(problem)].append(node)
    problems = []
    for (name, why), nodes in sorted(found.items()):
        first = f"the first in {nodes[0].place}" if nodes[0].place else f"{quoted([nodes[0].name])} the first"
        message = f"the operator {name} ({counted(len(nodes), 'node')}, {first}): {why}"
        problems.append(Problem("spec", message))
    return problems


def tensors_of(
    arrays: Mapping[str, np.ndarray[Any, Any]], trained: Sequence[str] = (), device: Any = "cpu"
) -> dict[str, Tensor]:
    """Return copies of arrays as tensors on a device; those that are `trained` as `torch.nn.Parameter`."""
    tensors = {name: torch.from_numpy(np.array(array)).to(device) for name, array in arrays.items()}
    return {name: torch.nn.Parameter(each) if name in trained else each for name, each in tensors.items()}


def translate(
    symbol: str,
    inputs: Sequence[str],
    tensors: Mapping[str, Tensor],
    training: bool = False,
    names: Mapping[str, str] | None = None,
) -> fx.GraphModule:
    """Return a module that computes the same as a symbol.

    Called with tensors for `inputs`, it returns the tuple of the symbol's outputs. With `training`, Dropout
    drops elements, and BatchNorm uses the batch, whose statistics it adds to the running ones in place.

    Parameters
    ----------
    symbol : str
        What ``symbol.tojson()`` returns.
    inputs : sequence of str
        The variables that are passed to each call, in order.
    tensors : mapping of str to torch.Tensor
        All other variables, which are shared, not copied. A `torch.nn.Parameter` becomes a parameter, any
        other tensor a buffer.
    names : mapping of str to str, optional
        The names of variables in the module, such as ``body.0.weight``; an underscore is added to what is
        an attribute of every module, or a keyword. By default those in the symbol.

    Raises
    ------
    SpecError
        Operators or attributes have no translation (all are listed), or variables have no values.
    """
    source, made, root, names = read_graph(symbol), fx.Graph(), torch.nn.Module(), names or {}
    variables = [node.name for node in source.nodes if node.operator == "null"]
    missing = [each for each in variables if each not in tensors and each not in inputs]
    no_values = [Problem("spec", f"the variables {quoted(missing)} have no values")] if missing else []
    raise_problems([*untranslated(symbol), *no_values])
    given = {each: made.placeholder(name) for each, name in zip(inputs, _identifiers(inputs))}
    read: dict[int, set[int]] = defaultdict(set)
    for index, output in (*source.heads, *(each for node in source.nodes for each in node.inputs)):
        read[index].add(output)
    outputs: dict[Output, fx.Node] = {}
    for at, node in enumerate(source.nodes):
        if node.operator == "null":
            if node.name not in given:
                path = free_path(names.get(node.name, node.name))
                set_tensor(root, path, tensors[node.name])
                given[node.name] = made.get_attr(path)
            outputs[at, 0] = given[node.name]
            continue
        function = OPERATORS[node.operator]
        options = read_attributes(function, node.attributes)
        like = given[inputs[0]] if inputs else None
        available = {"training": training, "like": like, "operator": node.operator}
        options |= {name: value for name, value in available.items() if name in table(function)}
        result = made.call_function(function, tuple(outputs[each] for each in node.inputs), options)
        if not returns_tuple(function):
            outputs[at, 0] = result
            continue
        for number in sorted(read[at]):
            outputs[at, number] = made.call_function(operator.getitem, (result, number))
    made.output(tuple(outputs[head] for head in source.heads))
    return freed_with_source(fx.GraphModule(root, made, "Net"))


def freed_with_source(module: fx.GraphModule) -> fx.GraphModule:
    """Return the module; when it is freed, so is its source, which torch.fx keeps for tracebacks."""
    sources = getattr(getattr(fx.graph_module, "_loader", None), "eval_cache", {})
    name = type(module).forward.__code__.co_filename
    for kept in (linecache.cache, sources):
        weakref.finalize(module, kept.pop, name, None).atexit = False
    return module


def free_path(target: str) -> str:
    """Return a path whose parts can be attributes in Python code; different paths stay different."""
    parts = target.split(".")
    return ".".join(f"{each}_" if each.rstrip("_") in _taken() else each for each in parts)


@cache
def _taken() -> frozenset[str]:
    return frozenset([*keyword.kwlist, *dir(fx.GraphModule(torch.nn.Module(), fx.Graph()))])


def set_tensor(root: torch.nn.Module, target: str, tensor: Tensor) -> None:
    """Put a tensor into a module at a path such as "body.0.weight"; missing modules on the way are added."""
    path, _, last = target.rpartition(".")
    holder = add_modules(root, path)
    if isinstance(tensor, torch.nn.Parameter):
        holder.register_parameter(last, tensor)
    else:
        holder.register_buffer(last, tensor)


def add_modules(
    root: torch.nn.Module, path: str, known: Mapping[str, torch.nn.Module] | None = None
) -> torch.nn.Module:
    """Return the module at a path; missing ones on the way are added, those that are `known` by path."""
    module, parts = root, path.split(".") if path else []
    for at, part in enumerate(parts):
        if part not in module._modules:
            whole = ".".join(parts[: at + 1])
            module.add_module(part, (known or {}).get(whole) or torch.nn.Module())
        module = module.get_submodule(part)
    return module


def _identifiers(names: Sequence[str]) -> list[str]:
    """Return names of arguments that do not hide names which the code of a module uses.

    Characters other than letters and digits become underscores.
    """
    identifiers: list[str] = []
    for name in names:
        plain = re.sub(r"\W|^(?=\d)", "_", name)
        plain += "_" if plain in USED_BY_CODE else ""
        identifiers.append(plain + "_" * identifiers.count(plain))
    return identifiers
