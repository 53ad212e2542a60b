"""Rewrite a traced graph so that each output's gradient reaches some of the parameters only."""

from __future__ import annotations

import json
from typing import Any, Collection, Mapping, Optional, Sequence

from ..graph_builder import Entry, GraphBuilder, Input, Node
from .graph_cut import moves_bias_alone, stops
from .traced_graph import as_json

Group = Optional[int]  # of outputs whose gradients reach the same parameters; None where no gradient flows


def bound_graph(symbol: Any, reaches: Sequence[frozenset[str]], trained: Collection[str]) -> Any:
    """Return a graph with the same outputs, whose gradients reach the parameters `reaches` names for each.

    `trained` are the names of all variables that are parameters with a gradient. An operator is computed once
    for each set of its inputs' gradients: where two outputs pass through it and move different parameters
    before it, it is computed twice, as by hand with ``detach``. Nothing is passed back twice, so that Dropout
    is right, and draws its masks independently for each.
    """
    graph = json.loads(as_json(symbol))
    groups = list(dict.fromkeys(reaches))
    learns = [_learns(graph["nodes"], group) for group in groups]
    rewriting = _Rewriting(graph, learns, set(trained))
    heads = [((node, out), groups.index(group)) for (node, out, *_), group in zip(graph["heads"], reaches)]
    return rewriting.run(heads)


def reaches_any(symbol: Any, reaches: Sequence[frozenset[str]]) -> list[bool]:
    """Return for each output whether its gradient reaches one of the parameters that `reaches` names."""
    graph = json.loads(as_json(symbol))
    learns = {group: _learns(graph["nodes"], group) for group in set(reaches)}
    return [learns[group][node] for (node, *_), group in zip(graph["heads"], reaches)]


def _learns(nodes: Sequence[Node], parameters: Collection[str]) -> list[bool]:
    """Return for each node whether its gradient reaches one of the parameters."""
    learns: list[bool] = []
    for node in nodes:
        passes = not stops(node) and any(learns[source] for source, *_ in node["inputs"])
        learns.append(node["name"] in parameters if node["op"] == "null" else passes)
    return learns


class _Rewriting:
    """Copies a graph, with a copy of a node for each group whose gradients go another way through it."""

    def __init__(self, graph: Mapping[str, Any], learns: Sequence[Sequence[bool]], trained: set[str]) -> None:
        self._nodes, self._learns, self._trained = graph["nodes"], learns, trained
        self._builder = GraphBuilder(graph)
        self._places: list[dict[Group, int]] = [{} for _ in self._nodes]
        self._copies: dict[Any, int] = {}  # by node and inputs
        self._blocked: dict[Entry, Input] = {}

    def run(self, heads: Sequence[tuple[Entry, Group]]) -> Any:
        """Return the new graph."""
        needed = self._needed(heads)
        for i, node in enumerate(self._nodes):
            for group in sorted(needed[i], key=lambda each: -1 if each is None else each):
                inputs = [self._entry((at, out), group) for at, out, *_ in node["inputs"]]
                bias_apart = group is not None and moves_bias_alone(node, self._learns[group])
                self._places[i][group] = self._copy(i, inputs, bias_apart)
        return self._builder.symbol([self._entry(entry, group) for entry, group in heads])

    def _needed(self, heads: Sequence[tuple[Entry, Group]]) -> list[set[Group]]:
        """Return the groups for which each node must be copied: None for values alone.

        Where a node is copied for a group, its values are known, and need no copy of their own.
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
        key = node, tuple(map(tuple, inputs)) if self._nodes[node]["op"] != "null" else ()
        if key not in self._copies:
            self._copies[key] = self._builder.node(node, inputs, bias_apart)
        return self._copies[key]

    def _entry(self, entry: Entry, group: Group) -> Input:
        """Return an entry of a node that was copied before; no gradient flows if the group has none there."""
        node, out = entry
        through, places = self._through(node, group), self._places[node]
        if through is not None or (None in places and self._nodes[node]["name"] not in self._trained):
            return [places[through], out, 0]
        if entry not in self._blocked:
            place = next(iter(places.values()))
            self._blocked[entry] = self._builder.operator("BlockGrad", [place, out, 0])
        return self._blocked[entry]
