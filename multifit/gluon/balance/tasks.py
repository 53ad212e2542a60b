"""The tasks that a method weighs, and which losses belong to each task."""

from __future__ import annotations

from collections import Counter
from typing import Any, Iterator, NamedTuple, Sequence

import numpy as np

from ...balance import Balance
from ...distributed import World
from ...errors import Problem, quoted, raise_problems, shown, suggest
from ...protocols import Numbers
from ...spec import TaskSpec
from ..execution.result import StepResult
from .gradient_figures import gradient_figures

METHODS = "valid is a method of multifit.balance, such as UPGrad(), or an object with the members of Balance"


NEEDS = ("nothing", "losses", "gramian")


Places = tuple[tuple[int, ...], ...]
"""For each of several arrays of losses, the tasks of its elements."""


class Tasks(NamedTuple):
    """The tasks by name, in order, and the index of the task of every loss."""

    names: tuple[str, ...]
    of_loss: dict[str, int]

    def places(self, losses: Sequence[Sequence[str]]) -> Places:
        """Return the tasks of the losses of each objective."""
        return tuple(tuple(self.of_loss[loss] for loss in each) for each in losses)

    def described(self, method: Balance) -> str:
        """Return one line that describes the method, its options and the tasks."""
        options = {name: value for name, value in vars(method).items() if name[0] != "_" and name != "groups"}
        arguments = ", ".join(f"{name}={shown(value)}" for name, value in sorted(options.items()))
        return f"{type(method).__name__}({arguments}): the tasks {quoted(self.names)}"

    def read_losses(self, result: StepResult, world: World) -> Numbers:
        """Return the tasks' losses over all devices and ranks; this waits for them."""
        return np.asarray(world.sum(self.losses(result, result.read_objectives())))

    def losses(self, result: StepResult, values: Sequence[float]) -> Numbers:
        """Return the tasks' losses from the values of the objectives' elements."""
        losses, rest = np.zeros(len(self.names)), iter(values)
        for keys in result.objective_losses:
            for key in keys:
                losses[self.of_loss[key]] += next(rest)
        return losses


def tasks_of(method: Balance, spec: TaskSpec) -> Tasks:
    """Return the tasks of a spec: a method may group losses, and a loss in no group is a task of its own.

    Raises SpecError if the method cannot weigh these losses.
    """
    keys = [term.key for term in spec.terms]
    groups = {name: list(losses) for name, losses in (method.groups or {}).items()}
    raise_problems(Problem("spec", f"balance: {message}") for message in _group_problems(groups, keys))
    grouped = {loss: name for name, losses in groups.items() for loss in losses}
    order = tuple(dict.fromkeys(grouped.get(key, key) for key in keys))
    tasks = Tasks(order, {key: order.index(grouped.get(key, key)) for key in keys})
    raise_problems(Problem("spec", f"balance: {message}") for message in _task_problems(method, tasks, spec))
    return tasks


def check_method(method: Any) -> None:
    """Raise SpecError if `method` is not a balancing method, or cannot run."""
    raise_problems(Problem("spec", f"balance: {message}") for message in _method_problems(method))


def _method_problems(method: Any) -> Iterator[str]:
    lacking = [name for name in ("needs", "on_device", "every", "groups") if not hasattr(method, name)]
    if isinstance(method, type):
        yield f"it is the class {method.__name__}; give an instance: {method.__name__}()"
    elif not all(callable(getattr(method, name, None)) for name in ("start", "weights")):
        yield f"it is {shown(method)}; {METHODS}"
    elif lacking:
        kind = type(method).__name__
        yield f"{kind} has no {quoted(lacking)}; derive it from multifit.balance.LossMethod, which has them"
    elif method.needs not in NEEDS:
        yield f"{type(method).__name__}.needs is {shown(method.needs)}; valid are {quoted(NEEDS)}"


def _group_problems(groups: dict[str, list[str]], keys: Sequence[str]) -> Iterator[str]:
    owners: dict[str, str] = {}
    for name, losses in groups.items():
        if not losses:
            yield f'tasks["{name}"] has no loss'
        for loss in losses:
            if loss not in keys:
                near = suggest(loss, keys)
                yield f'tasks["{name}"]: there is no loss "{loss}"{near}; valid are {quoted(keys)}'
            elif loss in owners:
                both = quoted([owners[loss], name])
                yield f'the loss "{loss}" is in the tasks {both}; leave it in one of them'
            owners[loss] = name
    for name in groups:
        if name in keys and owners.get(name) != name:
            yield f'the task "{name}" has the name of a loss that is not in it; rename the task'


def _task_problems(method: Balance, tasks: Tasks, spec: TaskSpec) -> Iterator[str]:
    with_gradient = {tasks.of_loss[term.key] for term in spec.terms if term.spec.weight != 0}
    if len(tasks.names) < 2:
        yield f"there is one task, {quoted(tasks.names)}, and nothing to weigh it against; leave balance= out"
    elif method.needs == "gramian" and len(with_gradient) < 2:
        left = [tasks.names[task] for task in with_gradient]
        what = f"one task, {quoted(left)}, and nothing to weigh it against" if left else "no task to weigh"
        yield f"losses of weight 0 have no gradient, which leaves {what}; leave balance= out"
    figures = {figure for term in spec.terms for figure in term.figures}
    figures |= {metric.key for metric in spec.metric_terms}
    added = [weight_figure(name) for name in tasks.names] + gradient_figures(tasks.names)
    for figure, count in Counter(added).items():
        if figure in figures:
            yield f'the figure "{figure}" is also that of a loss or metric; rename that loss or metric'
        elif count > 1:
            yield f'two pairs of tasks have the figure "{figure}"; rename a task'


def weight_figure(task: str) -> str:
    """Return the name of the figure of a task's weight."""
    return f"weight_{task}"
