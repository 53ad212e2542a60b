"""All figures of one stage: its losses and metrics, their names, directions and state."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from ..distributed import World
from ..spec import TaskSpec
from ..spec.terms import Term, listed
from ..utils.errors import Problem, raise_problems
from ..utils.stages import TRAIN
from .labels import LabelRule
from .metric_figures import weighted_means
from .sums import NORM, SAMPLES, WEIGHTED, PassSums

Totals = Mapping[str, np.ndarray[Any, Any]]
"""The sums of a pass by name."""


class StageFigures(ABC):
    """The figures of a stage, by name: those of the losses of `spec`, of `metrics`, and of `means`.

    A loss's figure is the sum of its values over that of its normalizers; the objective is the weighted sum
    of these. Losses, metrics and wrong labels are added up in `sums`. `means` are further figures, to which
    other objects add. `stage` is the name of the stage. `finite_only` says whether inputs and labels that are
    not finite are an error; `rules` are those by which values were counted, by key.

    `complete` says whether all batches of the pass were measured, and `ended` whether it will not go on after
    a resume either. An engine's `user_code` is its scope for what may raise errors of the user's code.
    """

    user_code: ClassVar[Any]

    def __init__(
        self,
        spec: TaskSpec,
        metrics: Sequence[Any],
        sums: PassSums,
        finite_only: bool = True,
        means: Sequence[Any] = (),
        stage: str = TRAIN,
    ) -> None:
        self.metrics, self.sums, self.means, self.stage = list(metrics), sums, list(means), stage
        self._spec, self._finite_only = spec, finite_only
        self.rules: dict[str, LabelRule] = {}
        self.complete = self.ended = False
        self._replaced: dict[str, float] | None = None
        self._in_use = False

    @property
    def batches(self) -> int:
        """The number of batches since the last reset."""
        return self.sums.batches

    @abstractmethod
    def unnamed(self) -> bool:
        """Whether metrics must be read before it is known how many figures they have."""

    def checked(self, rules: Sequence[Any]) -> list[Any]:
        """Return those of a batch's rules that this stage applies."""
        rules = [each for each in rules if self._finite_only or each.classes is not None or each.in_part]
        self.rules.update({rule.key: rule for rule in rules})
        return rules

    def read(self, quick: bool = False) -> dict[str, float]:
        """Return all figures by name, without prefix; empty before the first batch. Waits for the devices.

        They are those of this process alone, unless :meth:`join` was called since the last reset. If `quick`,
        those are left out that are computed from all arrays of the pass so far, until it has ended. Raises
        DataError if slots broke a rule, such as that a number is finite, or an index one of a class.
        """
        if self._replaced is not None:
            return dict(self._replaced)
        if not self.sums.samples:
            return {}
        figures = self._figures(self._totals(), self.metrics, quick=quick and not self.complete)
        self.release()
        return figures

    def join(self, world: World, ended: bool = True) -> None:
        """Replace the figures by those of all ranks together, equal on all ranks; waits for the devices.

        Sums are added up in the order of the ranks, and kept arrays are joined batch by batch. In training,
        the figures of a metric that is updated batch by batch are means over the ranks, with weights, because
        each rank has measured its samples only; in an evaluation, each rank has measured those of all ranks.
        A pass that has not `ended`, but was stopped, may go on after a resume.
        """
        self.complete, self.ended = True, ended
        if world.alone:
            return
        totals = self._totals() if self.sums.samples else {}
        states = {metric.term.key: metric.state() for metric in self.metrics if metric.merges}
        alone = {
            metric.term.key: metric.weighed(self.sums.samples)
            for metric in self.metrics
            if self.stage == TRAIN and not metric.merges and metric.measured
        }
        ranks = world.gather((totals, states, alone, self.rules))
        if any(totals for totals, *_ in ranks):
            summed: dict[str, Any] = {}
            for totals, _, _, rules in ranks:  # a rank may have had no batch with some of the slots
                self.rules.update(rules)
                for name, each in totals.items():
                    summed[name] = summed.get(name, 0.0) + each
            metrics = [
                _merged(metric, [states[metric.term.key] for _, states, *_ in ranks])
                if metric.merges
                else metric
                for metric in self.metrics
            ]
            keys = dict.fromkeys(key for _, _, alone, _ in ranks for key in alone)
            means = {
                key: weighted_means([each[key] for _, _, each, _ in ranks if key in each]) for key in keys
            }
            self.replace(self._figures(summed, metrics, means))
        self.release()

    def _totals(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return what was added up; errors of the devices are raised by reading."""
        with self.user_code(lambda: "an operation in one of the batches so far"):
            return self.sums.read()

    def _figures(
        self,
        totals: Totals,
        metrics: Sequence[Any],
        means: Mapping[str, Mapping[str, float]] | None = None,
        quick: bool = False,
    ) -> dict[str, float]:
        """Return all figures by name; `means` are those of metrics that each rank measured for itself."""
        figures = self._loss_figures(totals)
        counts = [(rule, int(np.sum(totals.get(key, 0)))) for key, rule in self.rules.items()]
        stage = "training" if self.stage == TRAIN else "evaluation"
        raise_problems([rule.problem(stage, count) for rule, count in counts if count])
        for metric in metrics:
            if means and metric.term.key in means:
                figures.update(means[metric.term.key])
            elif not (quick and len(metric.kept)):
                metric.compute(totals, self.complete)
                figures.update(metric.figures())
        for each in self.means:
            figures.update(each.read())
        return figures

    def _loss_figures(self, totals: Totals) -> dict[str, float]:
        terms, none = self._spec.terms, np.zeros(1)  # if no batch had a term's slots
        norms = {t.key: totals[SAMPLES] if t.counts_samples else none for t in terms}
        return loss_figures(
            terms,
            {term.key: totals.get(term.where, np.zeros(len(term.parts))) for term in terms},
            {key: float(totals.get(NORM + key, norm)[0]) for key, norm in norms.items()},
            {term.key: float(totals.get(WEIGHTED + term.key, none)[0]) for term in terms},
        )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Reserve the figures for one pass; raises RuntimeError within another, whose sums would be lost."""
        if self._in_use:
            raise RuntimeError(
                "evaluate was called by an event handler, in the middle of an evaluation; call it before or "
                "after it, or in evaluate_end with event_handlers=[], which leaves this handler out"
            )
        self._in_use = True
        try:
            yield
        finally:
            self._in_use = False

    def replace(self, figures: Mapping[str, float]) -> None:
        """Let :meth:`read` return these figures, until the next reset."""
        self._replaced = dict(figures)

    def reset(self) -> None:
        """Discard everything measured, as at the beginning of an epoch."""
        self.reset_own()
        for means in self.means:
            means.reset()

    def reset_own(self) -> None:
        """Discard what this process alone has measured, but not `means`, which are equal on all ranks."""
        self.sums.clear()
        self._replaced = None
        self.complete = self.ended = False
        for metric in self.metrics:
            metric.reset()

    # ---- checkpoints

    def state(self) -> dict[str, Any]:
        """Return what was measured since the reset, as a tree; write it before the next batch."""
        return {
            "sums": self.sums.state(),
            "metrics": {metric.term.key: metric.state() for metric in self.metrics},
            "means": [means.state() for means in self.means],
        }

    def load(self, state: Mapping[str, Any], divisible: bool = True) -> list[str]:
        """Load what :meth:`state` returned into figures that were just reset.

        Returns the keys of the metrics that had measured something, and start from zero: those that are
        updated batch by batch and have no `state_dict`, or whose states cannot be divided among ranks, if the
        state is to be divided, and so not `divisible`.
        """
        metrics = state["metrics"]
        lost = [each.term.key for each in self.metrics if each.load(metrics[each.term.key], divisible)]
        self.sums.load(state["sums"])
        for means, saved in zip(self.means, state["means"]):
            means.load(saved)
        return lost

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add what :meth:`state` returned in another process to what was measured.

        Metrics that are updated batch by batch cannot be added, unless they are of torchmetrics.
        """
        self.sums.merge(state["sums"])
        for metric in self.metrics:
            metric.merge(state["metrics"][metric.term.key])

    def release(self) -> None:
        """Discard kept arrays if the pass has ended and was read: they take memory, and need not be saved."""
        for metric in self.metrics if self.ended else ():
            metric.kept.clear()

    def names(self) -> list[str]:
        """Return the names of all figures, without prefix; for a metric without names yet, its key."""
        losses = [figure for term in self._spec.terms for figure in term.figures]
        others = [name for each in (*self.metrics, *self.means) for name in each.names]
        return [*(["loss"] if losses else []), *losses, *others]

    def direction(self, figure: str) -> str | None:
        """Return whether a figure is better "min" or "max"; None if unknown."""
        if figure == "loss" or any(figure in term.figures for term in self._spec.terms):
            return "min"
        metrics = [metric for metric in self.metrics if f"{figure}.".startswith(f"{metric.term.key}.")]
        return max(metrics, key=lambda metric: len(metric.term.key)).direction if metrics else None

    def name_problems(self) -> list[Problem]:
        """Return the problems with metrics' names, such as missing or equal ones; needs a measured batch."""
        if self.unnamed() or any(listed(metric.term.spec.names) for metric in self.metrics):
            self.read()  # a metric knows how many figures it has once it has measured something
        if problems := [problem for metric in self.metrics if (problem := metric.problem())]:
            return problems
        bearers: dict[str, list[str]] = {}
        for metric in self.metrics:
            for name in metric.names:
                bearers.setdefault(name, []).append(metric.term.where)
        shared = {name: " and ".join(metrics) for name, metrics in bearers.items() if len(metrics) > 1}
        return [
            Problem("spec", f'the figure "{name}" is produced by {of}; rename a metric, or give names=[...]')
            for name, of in shared.items()
        ]


def _merged(metric: Any, states: Sequence[Mapping[str, Any]]) -> Any:
    """Return a metric that has measured what all ranks have."""
    joint = metric.fork()
    joint.load(states[0], True)
    for state in states[1:]:
        joint.merge(state)
    return joint


def loss_figures(
    terms: Sequence[Term],
    sums: Mapping[str, Any],
    norms: Mapping[str, float],
    weighted: Mapping[str, float],
) -> dict[str, float]:
    """Return the objective, every term and every part; NaN for terms whose labels no batch had.

    `sums` are those of each term's parts, `norms` those of its normalizer, and `weighted` those of terms
    whose weight is a function, times their weight. The objective is NaN only if all its terms are; otherwise,
    terms that are NaN add nothing to it.
    """
    figures: dict[str, float] = {}
    weighed = [norms[term.key] for term in terms if term.spec.weight != 0]
    objective = math.nan if weighed and not any(weighed) else 0.0
    for term in terms:
        norm = norms[term.key]
        parts = [float(value) / norm if norm else 0.0 for value in sums[term.key]]
        measured = parts if norm else [math.nan] * len(parts)
        figures.update(zip(term.figures, [measured[term.minimized], *measured]))
        if callable(term.spec.weight):
            objective += weighted[term.key] / norm if norm else 0.0
        else:
            objective += term.spec.weight * parts[term.minimized]
    return {"loss": objective, **figures} if terms else {}
