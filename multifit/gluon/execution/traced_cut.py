"""A traced graph that is cut where its tasks branch, as another engine reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Collection, Mapping

from ..compat import mx
from .graph_cut import cut_graph
from .traced_graph import TracedGraph, as_json

OBJECTIVE = "objective."


@dataclass(frozen=True)
class TracedCut:
    """A traced graph cut in two; see :class:`multifit.gluon.execution.graph_cut.Cut`.

    `copies` are, for each output of the body, the inputs of the rest that take it, by task; the key None is
    for an input that no task's gradient reaches.
    """

    body: TracedGraph
    rest: TracedGraph
    copies: list[dict[int | None, str]]


def cut_traced(traced: TracedGraph, tasks: Mapping[str, int], trained: Collection[str]) -> TracedCut:
    """Cut a graph where its tasks branch; they must share a parameter.

    `tasks` are the losses' tasks by name; `trained` are the names of the variables that are parameters with a
    gradient.
    """
    of_outputs = [tasks.get(name.partition(OBJECTIVE)[2]) for name in traced.outputs]
    cut = cut_graph(traced.symbol, of_outputs, trained)
    assert cut is not None  # the first batch was checked
    copies = {name: name for taken in cut.copies for name in taken.values()}
    body = _part(cut.body, traced.inputs, [str(number) for number in range(len(cut.copies))])
    return TracedCut(body, _part(cut.rest, {**traced.inputs, **copies}, traced.outputs), cut.copies)


def _part(symbol: mx.sym.Symbol, inputs: Mapping[str, str], outputs: Collection[str]) -> TracedGraph:
    used = [name for name in symbol.list_inputs() if name in inputs]
    return TracedGraph(as_json(symbol), {name: inputs[name] for name in used}, tuple(outputs))
