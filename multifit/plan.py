"""The plan of a run: every name with what was really found for it, as a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterable, Mapping

from .checks import describe
from .spec import TaskSpec
from .spec.names import OUTPUTS, SLOTS, Ref
from .spec.summary import describe_weight
from .tables import table

__all__ = ["Plan", "StagePlan", "TrainerPlan", "stage_plan"]

Row = tuple  # of what, name, shape and dtype, where it goes


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
    """A spec, bound to a net's real outputs, a batch's real slots and the trainers. Printing it shows the table.

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
    rows: list[Row] = [("input", name, describe.array(slots.get(name)), "net") for name in spec.inputs]
    rows += [
        ("output", n, describe.array(outputs[n]), _takers(spec, Ref(OUTPUTS, n))) for n in spec.output_names
    ]
    rows += [("label", n, describe.array(slots.get(n)), _takers(spec, Ref(SLOTS, n))) for n in spec.labels]
    for term in spec.terms:
        by = term.spec.normalize_by
        over = (
            "the batch"
            if term.spec.scope == "batch"
            else "samples"
            if by is None
            else by
            if isinstance(by, str)
            else "a function of the slots"
        )
        goes = f"{describe_weight(term.spec.weight)} x {_called(term.spec.fn, term.args)} / {over}"
        rows.append(("loss", term.key, describe.array(parts.get(term.key)), goes))
        for i, part in enumerate(name for name in term.parts if name):
            goal = "minimised" if i == term.minimized else "measured"
            rows.append(("part", f"{term.key}.{part}", describe.array(parts.get(f"{term.key}.{part}")), goal))
    keys = {metric.key: metric for metric in spec.metric_terms}
    for key, figures, done in metrics:
        metric = keys[key]
        rows.append(
            ("metric", key, figures, f"{_called(metric.spec.metric, [*metric.args, *metric.losses])}, {done}")
        )
    return StagePlan(tuple(rows), how)


def _takers(spec: TaskSpec, ref: Ref) -> str:
    takers = [term.where for term in (*spec.terms, *spec.metric_terms) if ref in term.args]
    takers += [
        f"normalises {term.where}"
        for term in spec.terms
        if ref.space == SLOTS and term.spec.normalize_by == ref.name
    ]
    return ", ".join(takers) or "unused"


def _called(fn: Any, args: Iterable[object]) -> str:
    name = "the output" if fn is None else getattr(fn, "__name__", type(fn).__name__)
    return f"{name}({', '.join(str(arg) for arg in args)})"


def _span(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} … {names[-1]}"
