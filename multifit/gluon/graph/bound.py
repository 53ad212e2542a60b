"""Rewrite a traced graph so that each output's gradient reaches some of the parameters only."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .builder import Entry, GraphBuilder, Input
from .cut import as_json, learning, learns_bias_alone

# The number of a group of outputs whose gradients reach the same parameters; None where no gradient flows.
Group = int | None


def bound_graph(symbol: Any, reaches: Sequence[frozenset[str]], trained: Collection[str]) -> Any:
    """Return a graph with the same outputs, whose gradients reach certain parameters only.

    `reaches` names these parameters for each output, and `trained` all variables that are parameters with a
    gradient. If two outputs depend on an operator, and their gradients reach different parameters before it,
    the operator is copied and computed twice, as it would be by hand with ``detach``. Each copy has one
    backward pass, so that Dropout is correct; it draws its masks independently for each copy.
    """
    graph = json.loads(as_json(symbol))
    groups = list(dict.fromkeys(reaches))
    learns = [learning(graph["nodes"], group) for group in groups]
    rewriting = _Rewriting(graph, learns, set(trained))
    heads = [((node, out), groups.index(group)) for (node, out, *_), group in zip(graph["heads"], reaches)]
    return rewriting.run(heads)


def reaches_any(symbol: Any, reaches: Sequence[frozenset[str]]) -> list[bool]:
    """Return for each output whether its gradient reaches a parameter that `reaches` names for it."""
    graph = json.loads(as_json(symbol))
    learns = {group: learning(graph["nodes"], group) for group in set(reaches)}
    return [learns[group][node] for (node, *_), group in zip(graph["heads"], reaches)]


class _Rewriting:
    """Copies a graph, with one copy of a node for each way in which groups' gradients go through it.

    `learns` says, for each group and node, whether the node's gradient reaches one of the group's parameters.
    """

    def __init__(self, graph: Mapping[str, Any], learns: Sequence[Sequence[bool]], trained: set[str]) -> None:
        self._nodes, self._learns, self._trained = graph["nodes"], learns, trained
        self._builder = GraphBuilder(graph)
        self._numbers: list[dict[Group, int]] = [{} for _ in self._nodes]  # of the copies
        self._copies: dict[Any, int] = {}  # by node and inputs
        self._blocked: dict[Entry, Input] = {}

    def run(self, heads: Sequence[tuple[Entry, Group]]) -> Any:
        """Return the new graph."""
        needed = self._needed(heads)
        for i, node in enumerate(self._nodes):
            for group in sorted(needed[i], key=lambda each: -1 if each is None else each):
                inputs = [self._entry((at, out), group) for at, out, *_ in node["inputs"]]
                bias_apart = group is not None and learns_bias_alone(node, self._learns[group])
                self._numbers[i][group] = self._copy(i, inputs, bias_apart)
        return self._builder.symbol([self._entry(entry, group) for entry, group in heads])

    def _needed(self, heads: Sequence[tuple[Entry, Group]]) -> list[set[Group]]:
        """Return, for each node, the groups for which it must be copied; None if only its values are needed.

        A node that is copied for a group has its values already, and needs no copy for None.
        """
        needed: list[set[Group]] = [set() for _ in self._nodes]
        for (node, _), group in heads:
            needed[node].add(self._through(node, group))
        for i in range(len(self._nodes) - 1, -1, -1):  # nodes come after their inputs
            if len(needed[i]) > 1:
                needed[i].discard(None)
            for group in needed[i]:
                for source, *_ in self._nodes[i]["inputs"]:
                    needed[source].add(self._through(source, group))
        return needed

    def _through(self, node: int, group: Group) -> Group:
        """Return the group if its gradient goes through a node, else None."""
        return group if group is not None and self._learns[group][node] else None

    def _copy(self, node: int, inputs: list[Input], bias_apart: bool) -> int:
        key = node, tuple(map(tuple, inputs))
        if key not in self._copies:
            self._copies[key] = self._builder.copy(self._nodes[node], inputs, bias_apart)
        return self._copies[key]

    def _entry(self, entry: Entry, group: Group) -> Input:
        """Return the copy of an entry for a group, behind a BlockGrad if the group has no gradient there."""
        node, out = entry
        through, numbers = self._through(node, group), self._numbers[node]
        if through is not None or (None in numbers and self._nodes[node]["name"] not in self._trained):
            return [numbers[through], out, 0]
        if entry not in self._blocked:
            any_copy = next(iter(numbers.values()))
            self._blocked[entry] = self._builder.operator("BlockGrad", [any_copy, out, 0])
        return self._blocked[entry]
