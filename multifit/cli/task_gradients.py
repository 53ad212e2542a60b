"""Measures the gradients of each task alone, and what a step on one task does to the losses of the others."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..handlers.handler import Handler
from ..handlers.state import RunState
from ..spec import TaskSpec
from ..spec.terms import changed
from ..utils.protocols import MultiEstimator, Numbers
from ..utils.seeding import mixed, seed_operators

Gradients = dict[str, Numbers]
"""By parameter, flat, in float64."""


class Summary(NamedTuple):
    """What was measured of K tasks, as means over the batches; NaN is what was not compared.

    `opposed` is the share of batches in which the sum of all gradients goes against that of the task: a small
    step on the sum raises the task's loss. `affinity` is None unless it was measured.
    """

    lengths: Numbers  # (K,)
    cosines: Numbers  # (K, K)
    opposed: Numbers  # (K,)
    affinity: Numbers | None  # (K, K): of a step on a row's task, on the loss of a column's


class TaskGradients(Handler):
    """Compares the gradients of the parameters that tasks share, before each batch is trained on.

    The batch is passed through the net once for each task, with the loss of that task alone. These passes
    update nothing, and draw the same random numbers. So the gradients are exact, for any net and any loss. If
    loaders `take_turns`, a task is a loader: the next batches of all loaders are passed through the net, and
    then trained on one after the other.

    Set `names`, those of the losses or loaders, and `take_turns` before the fit. `chosen` are the names of
    the parameters to compare; None for all. `gramians` are (K, K), one for each batch that was measured.

    With `affinity`, the affinity of two tasks is measured too, by C. Fifty et al.: Efficiently Identifying
    Task Groupings for Multi-Task Learning, NeurIPS 2021 (arXiv:2109.04617): the share by which a step on the
    task of a row lowers the loss of a column's task on the same batch. The step is that of the trainers, for
    the shared parameters alone, and it is taken back. The loss is compared with that after a step with
    gradients of 0, which moves parameters too if the optimizer has momentum.
    """

    def __init__(self, affinity: bool = False, seed: int = 0) -> None:
        self.names: list[str] = []
        self.take_turns, self._affinity, self._seed = False, affinity, seed
        self.chosen: Collection[str] | None = None
        self.gramians: list[Numbers] = []
        self._changes: list[Numbers] = []
        self._reached: dict[str, set[int]] = {}  # by parameter, the tasks that have had a gradient there
        self._batches: list[Any] = []  # of the loaders that have given one
        self._only: str | None = None  # the loss that counts; None: all of them
        self._holds = False  # whether a pass only measures
        self._given: Gradients | None = None  # what an update uses in place of the pass's gradients
        self._gradients: Gradients = {}  # of the last pass that only measured
        self._losses: dict[str, float] = {}  # of the same pass, summed over the samples

    def restricted(self, spec: TaskSpec) -> TaskSpec:
        """Return a spec in which only the loss that this handler has chosen counts."""
        weights = {term.key: partial(self._weight, term.key, term.spec.weight) for term in spec.terms}
        terms = (replace(term, spec=replace(term.spec, weight=weights[term.key])) for term in spec.terms)
        return changed(spec, terms=tuple(terms))

    def _weight(self, key: str, declared: float | Callable[[RunState], float], state: RunState) -> float:
        if self._only not in (None, key):
            return 0.0
        return declared(state) if callable(declared) else declared

    @property
    def shared(self) -> list[str]:
        """The names of the parameters that are compared, as two tasks have reached them."""
        names = [name for name, tasks in self._reached.items() if len(tasks) > 1]
        return [name for name in names if self.chosen is None or name in self.chosen]

    def summary(self) -> Summary:
        """Return the means over the batches."""
        gramians = np.stack(self.gramians)
        squares = np.diagonal(gramians, axis1=1, axis2=2)
        lengths = np.sqrt(squares)
        cosines = _mean(gramians / lengths[:, :, np.newaxis] / lengths[:, np.newaxis])
        np.fill_diagonal(cosines, 1)
        opposed = np.where(np.isfinite(squares), np.nansum(gramians, axis=2) < 0, np.nan)
        affinity = _mean(np.stack(self._changes)) if self._affinity else None
        return Summary(_mean(lengths), cosines, _mean(opposed), affinity)

    # ---- events

    def batch_begin(self, estimator: MultiEstimator, batch: Any) -> None:
        """Measure with this batch; if loaders take turns, once each of them has given one."""
        if not self.take_turns:
            self._measure(estimator, [(name, batch) for name in self.names])
            return
        self._batches.append(batch)
        if len(self._batches) == len(self.names):
            self._measure(estimator, [(None, each) for each in self._batches])
            for each in self._batches[:-1]:
                estimator.fit_batch(each)
            self._batches = []
        self._holds = bool(self._batches)

    def hold_update(self, estimator: MultiEstimator, loss: Mapping[str, Any]) -> bool:
        """Keep the gradients and losses of a pass that only measures, and hold back its update."""
        if self._holds:
            self._gradients = {
                name: np.sum([_flat(array) for array in arrays], axis=0)
                for gradients in estimator.gradients().values()
                for name, arrays in gradients.items()
            }
            self._losses = {
                key: sum(float(_flat(array).sum()) for array in arrays)
                for key, arrays in loss.items()
                if all(array is not None for array in arrays)
            }
        return self._holds

    def change_gradients(self, estimator: MultiEstimator) -> None:
        """Replace the gradients by those of one task."""
        if self._given is None:
            return
        for gradients in estimator.gradients().values():
            for name, arrays in gradients.items():
                for array in arrays:
                    values = self._given[name].reshape(array.shape) if name in self._given else 0
                    array[:] = array.new_tensor(values) if hasattr(array, "new_tensor") else values

    # ---- measuring

    def _measure(self, estimator: MultiEstimator, passes: Sequence[tuple[str | None, Any]]) -> None:
        """Compare the gradients of these passes: of the loss that counts, and the batch."""
        rows: list[Gradients] = []
        if not self.gramians:  # the run's own numbers initialise the net, as in a training
            self._run(estimator, passes[0][1], None, seeded=False)
        for only, batch in passes:
            self._run(estimator, batch, only)
            rows.append({name: gradient for name, gradient in self._gradients.items() if gradient.any()})
        for task, row in enumerate(rows):
            for name in row:
                self._reached.setdefault(name, set()).add(task)
        rows = [{name: row[name] for name in self.shared if name in row} for row in rows]
        gramian = np.array([[_product(one, other) for other in rows] for one in rows], float)
        self.gramians.append(np.where(gramian != 0, gramian, np.nan))
        if self._affinity:
            batch = passes[0][1]
            before, *after = (self._after(estimator, batch, step) for step in ({}, *rows))
            self._changes.append((before - np.stack(after)) / np.where(before, abs(before), np.nan))

    def _after(self, estimator: Any, batch: Any, gradients: Gradients) -> Numbers:
        """Return the tasks' losses after a step by these gradients, which is then taken back."""
        with estimator._engine.preserved():
            self._run(estimator, batch, None, gradients)
            self._run(estimator, batch, None)
        return np.array([self._losses.get(name, np.nan) for name in self.names])

    def _run(
        self,
        estimator: Any,
        batch: Any,
        only: str | None,
        given: Gradients | None = None,
        seeded: bool = True,
    ) -> None:
        """Pass a batch through the net; update by the `given` gradients, or only measure without any.

        If `seeded`, it draws the same random numbers as all other passes through the batch.
        """
        seed = mixed(self._seed, estimator.state.step)
        self._only, self._given, self._holds = only, given, given is None
        if seeded:
            seed_operators(seed)
        estimator.fit_batch(batch)
        seed_operators(seed)
        self._only, self._given, self._holds = None, None, False


def _flat(array: Any) -> Numbers:
    """Return an array of MXNet or PyTorch as a flat one of NumPy, in float64."""
    array = array.detach().cpu().double().numpy() if hasattr(array, "new_tensor") else array.asnumpy()
    flat: Numbers = array.astype("float64").ravel()
    return flat


def _product(one: Gradients, other: Gradients) -> float:
    return sum(float(one[name] @ other[name]) for name in one if name in other)


def _mean(values: Numbers) -> Numbers:
    """Return the means over the first axis of those that are finite; NaN if none is."""
    finite = np.isfinite(values)
    sums, counts = np.where(finite, values, 0).sum(axis=0), finite.sum(axis=0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
