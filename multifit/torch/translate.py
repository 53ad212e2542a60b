"""From a symbol of MXNet to a module of torch that computes the same: a node for each operator."""

from __future__ import annotations

import keyword
import operator
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import fx

from ..errors import Problem, counted, quoted, raise_problems
from .attributes import AttributeProblem, Tensor, read_attributes, returns_tuple, table
from .graph import Graph, Node, Output, read_graph
from .operators.catalogue import OPERATORS

# by the code of torch.fx and of exported files
USED_BY_CODE = frozenset([*keyword.kwlist, "self", "_ops", "torch", "getattr", "inf", "nan", "device"])


def untranslated(symbol: str) -> list[Problem]:
    """Return what of a symbol cannot be translated: operators, and values of their attributes.

    Parameters
    ----------
    symbol : str
        What ``symbol.tojson()`` returns.
    """
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for _, node in read_graph(symbol).calls():
        if node.operator not in OPERATORS:
            found[node.operator, "it has no translation"].append(node.name)
            continue
        try:
            read_attributes(OPERATORS[node.operator], node.attributes)
        except AttributeProblem as problem:
            found[node.operator, str(problem)].append(node.name)
    return [
        Problem(
            "spec", f"the operator {name} ({counted(len(at), 'node')}, {quoted(at[:1])} the first): {why}"
        )
        for (name, why), at in sorted(found.items())
    ]


def tensors_of(
    arrays: Mapping[str, np.ndarray[Any, Any]], trained: Sequence[str] = (), device: Any = "cpu"
) -> dict[str, Tensor]:
    """Return arrays as tensors on a device, those that are trained as `torch.nn.Parameter`.

    Parameters
    ----------
    arrays : mapping of str to numpy.ndarray
        Copied.
    trained : sequence of str
        Names in `arrays`.
    device : str or torch.device
        Where the tensors live.
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
    """Return a module that computes what a symbol does.

    Called with tensors for `inputs`, it returns the tuple of the symbol's outputs. Training, it updates
    running statistics in place.

    Parameters
    ----------
    symbol : str
        What ``symbol.tojson()`` returns.
    inputs : sequence of str
        The variables that are given with each call, in order.
    tensors : mapping of str to torch.Tensor
        All other variables, by their names in the symbol. They are not copied, so that several modules, such
        as one that trains and one that evaluates, can share them. A `torch.nn.Parameter` is a parameter of
        the module, another tensor a buffer.
    training : bool
        Whether dropout drops, and batches are normalised by their own statistics.
    names : mapping of str to str, optional
        The names of variables in the module, such as ``body.0.weight``; by default those in the symbol. A
        part that every module of torch has an attribute of, such as "type", becomes "type_", and so does a
        keyword of Python, such as "class".

    Returns
    -------
    torch.fx.GraphModule

    Raises
    ------
    SpecError
        Operators or attributes have no translation, all of them at once; or variables are not given.
    """
    graph = read_graph(symbol)
    missing = [each for each in graph.variables if each not in tensors and each not in inputs]
    no_values = [Problem("spec", f"the variables {quoted(missing)} have no values")] if missing else []
    raise_problems([*untranslated(symbol), *no_values])
    return _Translation(graph, inputs, tensors, training, names or {}).module()


class _Translation:
    """A graph of torch in the making."""

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
        """Translate node after node."""
        for at, node in enumerate(self._source.nodes):
            if node.is_variable:
                self._outputs[at, 0] = self._variable(node.name)
            else:
                self._call(at, node)
        self._made.output(tuple(self._outputs[head] for head in self._source.heads))
        return fx.GraphModule(self._root, self._made, "Net")

    def _variable(self, name: str) -> fx.Node:
        if name in self._inputs:
            return self._inputs[name]
        target = _free_path(self._names.get(name, name))
        _set_tensor(self._root, target, self._tensors[name])
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


def _free_path(target: str) -> str:
    """Return a path whose parts can be attributes of a module in Python's code; equal only for equal ones."""
    parts = target.split(".")
    return ".".join(f"{each}_" if each.rstrip("_") in _taken() else each for each in parts)


@cache
def _taken() -> frozenset[str]:
    return frozenset([*keyword.kwlist, *dir(fx.GraphModule(torch.nn.Module(), fx.Graph()))])


def _set_tensor(root: torch.nn.Module, target: str, tensor: Tensor) -> None:
    """Put a tensor into a module, such as at "body.0.weight", with modules on the way."""
    *path, last = target.split(".")
    for each in path:
        if not hasattr(root, each):
            root.add_module(each, torch.nn.Module())
        root = getattr(root, each)
    if isinstance(tensor, torch.nn.Parameter):
        root.register_parameter(last, tensor)
    else:
        root.register_buffer(last, tensor)


def _identifiers(names: Sequence[str]) -> list[str]:
    """Return names of arguments that hide nothing which the code of a module uses.

    Other characters than letters and digits become underscores.
    """
    identifiers: list[str] = []
    for name in names:
        plain = re.sub(r"\W|^(?=\d)", "_", name)
        plain += "_" if plain in USED_BY_CODE else ""
        identifiers.append(plain + "_" * identifiers.count(plain))
    return identifiers
