"""The plan of a run: every name with what was really found for it, as a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Iterable, Mapping

from ..errors import counted
from ..tables import UNLIMITED, table

__all__ = ["Link", "Plan", "Row", "StagePlan", "TrainerPlan"]

Row = tuple[str, str, str, str]  # what it is, its name, shape and dtype, where it goes
Link = tuple[str, str, str, str, str]  # from (what, name) to (what, name), and how: it feeds or normalises


@dataclass(frozen=True)
class TrainerPlan:
    """One trainer: its optimizer, how many parameters it moves and which, and in how many calls to MXNet."""

    name: str
    optimizer: str
    learning_rate: float
    parameters: tuple[str, ...]
    size: int
    clip_norm: float | None = None
    calls: int | None = None  # where the optimizer decides by itself, nobody counts them

    def row(self) -> tuple[str, str, str, str]:
        """Return the trainer's line."""
        clip = f", gradients clipped to norm {self.clip_norm:g}" if self.clip_norm is not None else ""
        moved = f", in {counted(self.calls, 'call')}" if self.calls else ""
        what = f"{len(self.parameters)} parameters, {self.size:,} numbers"
        return (
            "trainer",
            self.name,
            what,
            f"{self.optimizer}, learning rate {self.learning_rate:g}{clip}{moved}: {_span(self.parameters)}",
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
    links : tuple of (what, name, what, name, how)
        Which output, slot or loss goes to which loss or metric: what the rows say in words.
    """

    rows: tuple[Row, ...]
    how: str
    links: tuple[Link, ...] = ()

    def __str__(self) -> str:
        return table(("what", "name", "found", "where it goes"), self.rows, UNLIMITED) + f"\n{self.how}"


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
    precision : str
        In what the net computes.
    """

    devices: tuple[str, ...]
    samples: int
    train: StagePlan | None = None
    evaluate: StagePlan | None = None
    trainers: tuple[TrainerPlan, ...] = ()
    frozen: tuple[str, ...] = ()
    notices: tuple[str, ...] = field(default=())
    precision: str = "float32"

    @property
    def where(self) -> str:
        """How large the batches are, and where and in what they are computed."""
        lowered = "" if self.precision == "float32" else f", computed in {self.precision}"
        return f"batches of {self.samples} on {', '.join(self.devices)}{lowered}"

    def __str__(self) -> str:
        parts = [self.where]
        if self.train is not None:
            parts.append(f"training\n{self.train}")
        if self.trainers:
            rows = [trainer.row() for trainer in self.trainers]
            if self.frozen:
                rows.append(("frozen", "", f"{len(self.frozen)} parameters", _span(self.frozen)))
            parts.append("parameters\n" + table((), rows, UNLIMITED))
        if self.evaluate is not None:
            parts.append(f"evaluating and predicting\n{self.evaluate}")
        parts += ["\n".join(f"note: {notice}" for notice in self.notices)] if self.notices else []
        return "\n\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> Plan:
        """Return the plan that :meth:`to_dict` gave, through JSON or not.

        Raises
        ------
        ValueError
            It is no plan.
        """
        try:
            return cls(
                devices=_texts(kept["devices"]),
                samples=int(kept["samples"]),
                train=_stage(kept["train"]),
                evaluate=_stage(kept["evaluate"]),
                trainers=tuple(
                    TrainerPlan(**{**each, "parameters": _texts(each["parameters"])})
                    for each in kept["trainers"]
                ),
                frozen=_texts(kept["frozen"]),
                notices=_texts(kept["notices"]),
                precision=str(kept.get("precision", "float32")),  # a plan of before there was another
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a plan: {type(error).__name__}: {error}") from error


def _span(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} … {names[-1]}"


def _stage(kept: Mapping[str, Any] | None) -> StagePlan | None:
    if kept is None:
        return None
    rows = tuple(_sized(_texts(row), 4) for row in kept["rows"])
    return StagePlan(rows, str(kept["how"]), tuple(_sized(_texts(link), 5) for link in kept["links"]))


def _texts(items: Iterable[Any]) -> tuple[str, ...]:
    if isinstance(items, str):
        raise ValueError(f"{items!r} is not a list")
    return tuple(map(str, items))


def _sized(items: tuple[str, ...], size: int) -> Any:
    if len(items) != size:
        raise ValueError(f"{items} has {len(items)} items, not {size}")
    return items
