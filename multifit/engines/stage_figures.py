"""What the figures of a stage have in common in all engines: their names, and those of losses."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import Problem
from ..spec import TaskSpec
from ..spec.names import listed
from ..spec.terms import Term


class StageFigures(ABC):
    """The figures of a stage, by name: those of the losses of `spec`, of `metrics`, and of `means`.

    `complete` says whether all batches of the pass were measured, and `ended` whether it will not go on after
    a resume either.
    """

    def __init__(self, spec: TaskSpec, metrics: Sequence[Any], means: Sequence[Any], stage: str) -> None:
        self.metrics, self.means, self.stage = list(metrics), list(means), stage
        self._spec = spec
        self.complete = self.ended = False
        self._replaced: dict[str, float] | None = None
        self._in_use = False

    @abstractmethod
    def read(self, quick: bool = False) -> dict[str, float]:
        """Return all figures by name."""

    @abstractmethod
    def unnamed(self) -> bool:
        """Whether metrics must be read before it is known how many figures they have."""

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
        self._replaced = None
        self.complete = self.ended = False
        for metric in self.metrics:
            metric.reset()

    # ---- checkpoints

    def state(self) -> dict[str, Any]:
        """Return what was measured since the reset, as a tree; write it before the next batch."""
        return {
            "sums": self._sums_state(),
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
        self._load_sums(state["sums"])
        for means, saved in zip(self.means, state["means"]):
            means.load(saved)
        return lost

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add what :meth:`state` returned in another process to what was measured.

        Metrics that are updated batch by batch cannot be added, unless they are of torchmetrics.
        """
        self._merge_sums(state["sums"])
        for metric in self.metrics:
            metric.merge(state["metrics"][metric.term.key])

    @abstractmethod
    def _sums_state(self) -> dict[str, Any]:
        """Return everything that was added up."""

    @abstractmethod
    def _load_sums(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`_sums_state` returned."""

    @abstractmethod
    def _merge_sums(self, state: Mapping[str, Any]) -> None:
        """Add what :meth:`_sums_state` returned in another process."""

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
