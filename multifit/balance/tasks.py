"""The tasks that a method weighs, and what is refused: methods, groups of losses and names of figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..utils.errors import Problem, raise_problems
from ..utils.protocols import Numbers
from ..utils.text import quoted, shown, suggest
from .means import gradient_figures, weight_figure
from .protocol import Balance

if TYPE_CHECKING:
    from ..spec import TaskSpec


METHODS = "valid is a method of multifit.balance, such as UPGrad(), or an object with the members of Balance"
NEEDS = ("nothing", "losses", "gramian")


class Tasks(NamedTuple):
    """The tasks by name, in order, and the index of the task of every loss.

    `weighed` are the indices of the tasks that have a loss of a declared weight other than 0.
    """

    names: tuple[str, ...]
    of_loss: dict[str, int]
    weighed: tuple[int, ...]

    def first_weights(self, method: Balance) -> Numbers:
        """Return the weights of tasks that were absent so far: a task's share, or 1."""
        averages = self.weighed and getattr(method, "averages", False)
        share = 1 / len(self.weighed) if averages else 1.0
        return np.full(len(self.names), share)

    def described(self, method: Balance) -> str:
        """Return one line that describes the method, its options and the tasks."""
        options = {name: value for name, value in vars(method).items() if name[0] != "_" and name != "groups"}
        arguments = ", ".join(f"{name}={shown(value)}" for name, value in sorted(options.items()))
        return f"{type(method).__name__}({arguments}): the tasks {quoted(self.names)}"

    def preference(self, method: Balance) -> Numbers | None:
        """Return how much each task counts, whose mean over the weighed tasks is 1; None if all count 1."""
        preference = getattr(method, "preference", None) or {}
        values = np.array([preference.get(name, 1.0) for name in self.names])
        return values / values[list(self.weighed)].mean() if preference else None

    def normalizers(self, scale: Any) -> list[Any]:
        """Return the sum of the normalizers of each task's losses, but of those of weight 0 in a batch."""
        sums: list[Any] = [0.0] * len(self.names)
        for loss, task in self.of_loss.items():
            if scale.weights[loss]:
                sums[task] = sums[task] + scale.norms[loss]
        return sums


def tasks_of(method: Balance, spec: TaskSpec) -> Tasks:
    """Return the tasks of a spec: a method may group losses, and a loss in no group is a task of its own.

    Raises SpecError if the method cannot weigh these losses.
    """
    keys = [term.key for term in spec.terms]
    groups = {name: list(losses) for name, losses in (method.groups or {}).items()}
    raise_problems(Problem("spec", f"balance: {message}") for message in _group_problems(groups, keys))
    grouped = {loss: name for name, losses in groups.items() for loss in losses}
    order = tuple(dict.fromkeys(grouped.get(key, key) for key in keys))
    of_loss = {key: order.index(grouped.get(key, key)) for key in keys}
    weighed = {of_loss[term.key] for term in spec.terms if term.spec.weight != 0}
    tasks = Tasks(order, of_loss, tuple(sorted(weighed)))
    raise_problems(Problem("spec", f"balance: {message}") for message in _task_problems(method, tasks, spec))
    return tasks


def check_method(method: Any, spec: TaskSpec) -> None:
    """Raise SpecError if `method` cannot balance this net's losses, or if losses are bound to trainers."""
    messages = list(_method_problems(method))
    if not messages and (bound := [term.key for term in spec.terms if term.trainers]):
        why = f"the losses {quoted(bound)} are bound to trainers, so balance= cannot weigh them"
        messages = [f"{why}; leave balance= out, or their trainers="]
    raise_problems(Problem("spec", f"balance: {message}") for message in messages)


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
    for name in getattr(method, "preference", None) or {}:
        if name not in tasks.names:
            near = suggest(name, tasks.names)
            yield f'preference: there is no task "{name}"{near}; valid are {quoted(tasks.names)}'
    if len(tasks.names) < 2:
        yield f"there is one task, {quoted(tasks.names)}, and nothing to weigh it against; leave balance= out"
    elif method.needs == "gramian" and len(tasks.weighed) < 2:
        left = [tasks.names[task] for task in tasks.weighed]
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
