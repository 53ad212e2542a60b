"""The plan of a run: every name with what was really found for it, as a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterable, Iterator, Mapping

from .checks import describe
from .spec import TaskSpec
from .spec.names import OUTPUTS, SLOTS, Ref
from .spec.summary import describe_weight
from .spec.terms import MetricTerm, Term
from .tables import table

__all__ = ["Plan", "StagePlan", "TrainerPlan", "stage_plan"]

Row = tuple[str, str, str, str]  # what it is, its name, shape and dtype, where it goes


@dataclass(frozen=True)
class TrainerPlan:
    """One trainer: its optimizer, how many parameters it moves and which."""

    name: str
    optimizer: str
    learning_rate: float
    parameters: tuple[str, ...]
    size: int
    clip_norm: float | None = None

    def row(self) -> tuple[str, str, str, str]:
        """Return the trainer's line."""
        clip = f", gradients clipped to norm {self.clip_norm:g}" if self.clip_norm is not None else ""
        what = f"{len(self.parameters)} parameters, {self.size:,} numbers"
        return (
            "trainer",
            self.name,
            what,
            f"{self.optimizer}, learning rate {self.learning_rate:g}{clip}: {_span(self.parameters)}",
        )


@dataclass(frozen=True)
class StagePlan:
    """What one stage does with a batch.

    Attributes
    ----------
    rows : tuple of (what, name, found, where it goes)
        A line for every input, output, label, loss, part and metric.
    how : str
        What was traced into a graph, and why something was not.
    """

    rows: tuple[Row, ...]
    how: str

    def __str__(self) -> str:
        return table(self.rows, header=("what", "name", "found", "where it goes")) + f"\n{self.how}"


@dataclass(frozen=True)
class Plan:
    """A spec, bound to a net's real outputs, a batch's real slots and the trainers; printed, it is a table.

    Attributes
    ----------
    devices : tuple of str
        Where the run is.
    samples : int
        The size of the batch that was looked at.
    train, evaluate : StagePlan or None
        What is done when training and when evaluating.
    trainers : tuple of TrainerPlan
        Who moves what.
    frozen : tuple of str
        Trainable parameters that no trainer moves, on purpose.
    notices : tuple of str
        Defaults that were used and other things worth knowing.
    """

    devices: tuple[str, ...]
    samples: int
    train: StagePlan | None = None
    evaluate: StagePlan | None = None
    trainers: tuple[TrainerPlan, ...] = ()
    frozen: tuple[str, ...] = ()
    notices: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        parts = [f"batches of {self.samples} on {', '.join(self.devices)}"]
        if self.train is not None:
            parts.append(f"training\n{self.train}")
        if self.trainers:
            rows = [trainer.row() for trainer in self.trainers]
            if self.frozen:
                rows.append(("frozen", "", f"{len(self.frozen)} parameters", _span(self.frozen)))
            parts.append("parameters\n" + table(rows))
        if self.evaluate is not None:
            parts.append(f"evaluating and predicting\n{self.evaluate}")
        parts += ["\n".join(f"note: {notice}" for notice in self.notices)] if self.notices else []
        return "\n\n".join(parts)


def stage_plan(
    spec: TaskSpec, outputs: Mapping[str, Any], slots: Mapping[str, Any], parts: Mapping[str, Any],
    metrics: Iterable[tuple[str, str, str]], how: str,
) -> StagePlan:  # fmt: skip
    """Describe a stage.

    Parameters
    ----------
    spec : TaskSpec
        The declarations.
    outputs, slots, parts : mapping of str to array
        What was found on the first device: the net's outputs, the batch's slots, what the losses returned.
    metrics : iterable of (key, figures, how)
        The stage's metrics.
    how : str
        What was traced.
    """
    found = list(metrics)
    measured = {key for key, _, _ in found}
    terms: list[Term | MetricTerm] = [*spec.terms, *(m for m in spec.metric_terms if m.key in measured)]
    rows: list[Row] = [("input", name, describe.array(slots.get(name)), "net") for name in spec.inputs]
    rows += [
        ("output", name, describe.array(outputs[name]), _takers(terms, Ref(OUTPUTS, name)))
        for name in spec.output_names
    ]
    rows += [
        ("label", name, describe.array(slots.get(name)), _takers(terms, Ref(SLOTS, name)))
        for name in spec.labels
    ]
    rows += [row for term in spec.terms for row in _loss_rows(term, parts)]
    named = {metric.key: metric for metric in spec.metric_terms}
    rows += [_metric_row(named[key], figures, done) for key, figures, done in found]
    return StagePlan(tuple(rows), how)


def _loss_rows(term: Term, parts: Mapping[str, Any]) -> Iterator[Row]:
    called = _called(term.spec.fn, term.args)
    goes = f"{describe_weight(term.spec.weight)} x {called} / {_normalizer(term)}"
    yield "loss", term.key, describe.array(parts.get(term.key)), goes
    for i, part in enumerate(name for name in term.parts if name):
        name = f"{term.key}.{part}"
        goal = "minimised" if i == term.minimized else "measured"
        yield "part", name, describe.array(parts.get(name)), goal


def _normalizer(term: Term) -> str:
    by = term.spec.normalize_by
    if term.spec.scope == "batch":
        return "the batch"
    return by if isinstance(by, str) else "a function of the slots" if by is not None else "samples"


def _metric_row(metric: MetricTerm, figures: str, done: str) -> Row:
    return (
        "metric",
        metric.key,
        figures,
        f"{_called(metric.spec.metric, [*metric.args, *metric.losses])}, {done}",
    )


def _takers(terms: Iterable[Term | MetricTerm], ref: Ref) -> str:
    takers = []
    for term in terms:
        if ref in term.args:
            takers.append(term.where)
        if isinstance(term, Term) and ref.space == SLOTS and term.spec.normalize_by == ref.name:
            takers.append(f"normalises {term.where}")
    return ", ".join(takers) or "unused"


def _called(fn: Any, args: Iterable[object]) -> str:
    name = "the output" if fn is None else getattr(fn, "__name__", type(fn).__name__)
    return f"{name}({', '.join(str(arg) for arg in args)})"


def _span(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} … {names[-1]}"
