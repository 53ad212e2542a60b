"""Says which arrays go where between the two parts of a cut graph."""

from __future__ import annotations

from typing import NamedTuple, Sequence

from .graph_cut import Cut


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
    at = {name: place for place, name in enumerate(names)}
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
