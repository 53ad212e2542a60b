"""Translate a symbol of MXNet to a module of torch that computes the same, with a node for each operator."""

from __future__ import annotations

import keyword
import linecache
import operator
import re
import weakref
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import fx

from ...errors import Problem, counted, quoted, raise_problems
from .attributes import AttributeProblem, Tensor, read_attributes, returns_tuple, table
from .graph import Graph, Node, Output, read_graph
from .operators.catalogue import OPERATORS

# names that the code of torch.fx and of exported files uses
USED_BY_CODE = frozenset([*keyword.kwlist, "self", "_ops", "torch", "getattr", "inf", "nan", "device"])


def untranslated(symbol: str) -> list[Problem]:
    """Return the operators of a symbol, and the values of attributes, that cannot be translated.

    Parameters
    ----------
    symbol : str
        What ``symbol.tojson()`` returns.
    """
    found: dict[tuple[str, str], list[Node]] = defaultdict(list)
    for _, node in read_graph(symbol).calls():
        if node.operator not in OPERATORS:
            found[node.operator, "it has no translation"].append(node)
            continue
        try:
            read_attributes(OPERATORS[node.operator], node.attributes)
        except AttributeProblem as problem:
            found[node.operator, str(problem)].append(node)
    return [
        Problem("spec", f"the operator {name} ({counted(len(at), 'node')}, {_first(at[0])}): {why}")
        for (name, why), at in sorted(found.items())
    ]


def _first(node: Node) -> str:
    return f"the first in {node.place}" if node.place else f"{quoted([node.name])} the first"


def tensors_of(
    arrays: Mapping[str, np.ndarray[Any, Any]], trained: Sequence[str] = (), device: Any = "cpu"
) -> dict[str, Tensor]:
    """Return arrays as tensors on a device; trained arrays become a `torch.nn.Parameter`.

    Parameters
    ----------
    arrays : mapping of str to numpy.ndarray
        The arrays, which are copied.
    trained : sequence of str
        The names of the trained arrays.
    device : str or torch.device
        The device of the tensors.
    """
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

    Called with tensors for `inputs`, it returns the tuple of the symbol's outputs. With `training`, it
    updates running statistics in place.

    Parameters
    ----------
    symbol : str
        What ``symbol.tojson()`` returns.
    inputs : sequence of str
        The variables that are passed to each call, in order.
    tensors : mapping of str to torch.Tensor
        All other variables, by their names in the symbol. They are not copied, so that several modules, such
        as one that trains and one that evaluates, can share them. A `torch.nn.Parameter` becomes a parameter
        of the module, any other tensor a buffer.
    training : bool
        Whether Dropout drops elements, and BatchNorm uses the statistics of the batch.
    names : mapping of str to str, optional
        The names of variables in the module, such as ``body.0.weight``; by default those in the symbol. A
        part of a name that is an attribute of every torch module gets an underscore ("type" becomes "type_"),
        and so does a keyword of Python, such as "class".

    Returns
    -------
    torch.fx.GraphModule

    Raises
    ------
    SpecError
        Operators or attributes have no translation (all are listed), or variables have no values.
    """
    graph = read_graph(symbol)
    missing = [each for each in graph.variables if each not in tensors and each not in inputs]
    no_values = [Problem("spec", f"the variables {quoted(missing)} have no values")] if missing else []
    raise_problems([*untranslated(symbol), *no_values])
    return _Translation(graph, inputs, tensors, training, names or {}).module()


class _Translation:
    """Builds the graph of torch."""

    def __init__(
        self,
        graph: Graph,
        inputs: Sequence[str],
        tensors: Mapping[str, Tensor],
        training: bool,
        names: Mapping[str, str],
    ) -> None:
        self._source, self._tensors, self._names = graph, tensors, names
        self._made = fx.Graph()
        self._root = torch.nn.Module()
        self._inputs = {
            each: self._made.placeholder(name) for each, name in zip(inputs, _identifiers(inputs))
        }
        self._given = {"training": training, "like": next(iter(self._inputs.values()), None)}
        self._outputs: dict[Output, fx.Node] = {}
        self._read: dict[int, set[int]] = defaultdict(set)
        for at, output in (*graph.heads, *(each for node in graph.nodes for each in node.inputs)):
            self._read[at].add(output)

    def module(self) -> fx.GraphModule:
        """Translate all nodes in order."""
        for at, node in enumerate(self._source.nodes):
            if node.is_variable:
                self._outputs[at, 0] = self._variable(node.name)
            else:
                self._call(at, node)
        self._made.output(tuple(self._outputs[head] for head in self._source.heads))
        return freed_with_source(fx.GraphModule(self._root, self._made, "Net"))

    def _variable(self, name: str) -> fx.Node:
        if name in self._inputs:
            return self._inputs[name]
        target = free_path(self._names.get(name, name))
        set_tensor(self._root, target, self._tensors[name])
        return self._made.get_attr(target)

    def _call(self, at: int, node: Node) -> None:
        function = OPERATORS[node.operator]
        options = read_attributes(function, node.attributes)
        available = {**self._given, "operator": node.operator}
        options.update((name, value) for name, value in available.items() if name in table(function))
        result = self._made.call_function(
            function, tuple(self._outputs[each] for each in node.inputs), options
        )
        if not returns_tuple(function):
            self._outputs[at, 0] = result
            return
        for number in sorted(self._read[at]):
            self._outputs[at, number] = self._made.call_function(operator.getitem, (result, number))


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
