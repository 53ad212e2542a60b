"""The tasks that a method weighs, what is refused, and the tasks' figures: means over an epoch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ..utils.errors import Problem, raise_problems
from ..utils.protocols import Array, Numbers
from ..utils.text import quoted, shown, suggest
from .protocol import PULL_APART, Balance

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


CHUNK = 64  # batches whose figures are computed at once, which takes as long as for a single batch


class Sums(Protocol):
    """Adds up arrays of one shape, without waiting for them."""

    def add(self, values: Any) -> None:
        """Add an array."""

    def read(self) -> Any:
        """Return the sum in NumPy, 0 if nothing was added; this waits."""

    def state(self) -> list[Array]:
        """Return arrays that add up to the sum, for a checkpoint."""

    def load(self, state: Sequence[Array]) -> None:
        """Restore what :meth:`state` returned."""


class Means:
    """The means of some numbers over the batches in which each was measured; only reading them waits.

    What is added up has two rows: the numbers, 0 where there is none, and how often each was measured.
    `new_sums` makes an object that adds up arrays of an engine; without it, all are NumPy's.
    """

    def __init__(self, names: Sequence[str], new_sums: Callable[[], Sums] | None = None) -> None:
        self.names, self.new_sums = list(names), new_sums
        self.reset()

    def reset(self) -> None:
        """Discard everything, as at the beginning of an epoch."""
        self._sum = None if self.new_sums is None else self.new_sums()
        self._host_sum = np.zeros((2, len(self.names)))

    def add(self, rows: Array | Numbers) -> None:
        """Add a batch: a float64 array, in NumPy or on a device, with a column for each of the names.

        The first row holds the numbers, and the second has 1 for each of them that was measured, else 0. A
        number that was not measured must be 0. Further rows of an array on a device are ignored.
        """
        if self._sum is None or isinstance(rows, np.ndarray):
            self._host_sum = self._host_sum + rows
        else:
            self._sum.add(rows)

    def read(self) -> dict[str, float]:
        """Return the means by name, NaN for those that were never measured; this waits for the device."""
        on_device = np.asarray(0.0 if self._sum is None else self._sum.read())
        sums, counts = self._host_sum + (on_device[:2] if on_device.ndim else 0.0)
        means = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
        return dict(zip(self.names, means.tolist()))

    def state(self) -> dict[str, Any]:
        """Return the sums, for a checkpoint."""
        on_device = [] if self._sum is None else self._sum.state()
        return {"names": self.names, "sum": on_device, "host_sum": self._host_sum}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        if self._sum is not None:
            self._sum.load(state["sum"])
        self._host_sum = state["host_sum"]


def measured_rows(numbers: Numbers, measured: Numbers) -> Numbers:
    """Return the rows to add to :class:`Means`; `measured` is 1 for each number that was measured, else 0."""
    return np.stack([numbers * measured, measured])


class GradientFigures(Means):
    """The means over an epoch of figures of each batch's Gramian; see :func:`gradient_figures`."""

    def __init__(self, tasks: Sequence[str]) -> None:
        self._pending: list[Numbers] = []
        self._pairs = list(combinations(tasks, 2))
        super().__init__(gradient_figures(tasks))

    def reset(self) -> None:
        """Discard everything, as at the beginning of an epoch."""
        self._pending = []
        self._unmet = np.zeros(len(self._pairs), bool)  # in some batch that had a gradient of both
        super().reset()

    def add_gramian(self, gramian: Numbers) -> None:
        """Add the inner products of a batch, of shape (tasks, tasks)."""
        self._pending.append(gramian)
        if len(self._pending) == CHUNK:
            self._flush()

    def never_met(self) -> list[tuple[str, str]]:
        """Return the pairs of tasks whose gradients met in no batch, though some batch had both."""
        means, pairs = self.read(), zip(self._pairs, self._unmet)
        return [pair for pair, unmet in pairs if unmet and math.isnan(means[cosine_figure(*pair)])]

    def read(self) -> dict[str, float]:
        """Return the means by name, NaN for those that no batch has measured."""
        self._flush()
        return super().read()

    def state(self) -> dict[str, Any]:
        """Return the sums, for a checkpoint."""
        self._flush()
        return super().state()

    def _flush(self) -> None:
        if self._pending:
            rows, unmet = _figures(np.stack(self._pending))
            self._unmet |= unmet
            for row in rows:
                self.add(row)
        self._pending = []


def gradient_figures(names: Sequence[str]) -> list[str]:
    """Return the names of the figures: norms, cosines of pairs, and the share of pairs that conflict."""
    cosines = [cosine_figure(*pair) for pair in combinations(names, 2)]
    return [*[f"gradnorm_{name}" for name in names], *cosines, "conflict"]


def cosine_figure(one: str, other: str) -> str:
    """Return the name of the figure of two tasks' cosine."""
    return f"cosine_{one}_{other}"


def _figures(gramians: Numbers) -> tuple[list[Numbers], Numbers]:
    """Return the figures of each batch as the rows that :class:`Means` adds up, in the order of their names.

    A task whose gradient is 0, such as one without labels in the batch, has no figures there. Nor have two
    tasks whose gradients did not meet: an inner product of exactly 0 means that they are nowhere both other
    than 0. Also returns for each pair whether that was so in a batch, though both had a gradient.
    """
    norms = np.sqrt(np.diagonal(gramians, axis1=1, axis2=2).clip(min=0))
    has_gradient = norms > 0
    lengths = np.where(has_gradient, norms, 1.0)
    one, other = np.triu_indices(norms.shape[1], 1)
    cosines = gramians[:, one, other] / (lengths[:, one] * lengths[:, other])
    both = has_gradient[:, one] & has_gradient[:, other]
    pairs = both & (cosines != 0)
    counts = pairs.sum(axis=1, keepdims=True)
    conflicts = ((cosines < PULL_APART) & pairs).sum(axis=1, keepdims=True) / counts.clip(min=1)
    figures, measured = np.hstack([norms, cosines, conflicts]), np.hstack([has_gradient, pairs, counts > 0])
    rows = [measured_rows(*each) for each in zip(figures, measured.astype(np.float64))]
    return rows, (both & ~pairs).any(axis=0)


def weight_figure(task: str) -> str:
    """Return the name of the figure of a task's weight."""
    return f"weight_{task}"
