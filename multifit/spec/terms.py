"""Losses and metrics whose names are resolved to references."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from .names import OUTPUTS, SLOTS, Ref, listed
from .specs import LossSpec, MetricSpec


@dataclass(frozen=True)
class Term:
    """A term of the objective: one loss with its arguments."""

    key: str
    spec: LossSpec
    args: tuple[Ref, ...]
    parts: tuple[str, ...] = ("",)  # names of what it returns; one empty name for a single array
    minimized: int = 0  # index of the part that enters the objective
    present: tuple[Ref, ...] = ()  # slots that say where its labels are present, of those that may be missing
    optional: frozenset[str] = frozenset()  # slots that some batches lack, which then skip it

    @property
    def refs(self) -> tuple[Ref, ...]:
        """Everything that it reads."""
        return (*self.args, *self.present)

    @property
    def counts_samples(self) -> bool:
        """Whether its normalizer is the number of samples of all batches."""
        return self.spec.normalize_by is None and not self.present and not self.optional

    @property
    def trainers(self) -> tuple[str, ...]:
        """The trainers whose parameters it moves; none if it moves all."""
        return listed(self.spec.trainers)

    @property
    def where(self) -> str:
        """Its name in messages."""
        return f'losses["{self.key}"]'

    @property
    def outputs(self) -> list[Ref]:
        """The arguments that are outputs."""
        return [ref for ref in self.args if ref.space == OUTPUTS]

    @property
    def figures(self) -> list[str]:
        """Names of its figures: the loss, then its parts."""
        return [self.key, *(f"{self.key}.{part}" for part in self.parts if part)]


@dataclass(frozen=True)
class MetricTerm:
    """A metric with its arguments."""

    key: str
    spec: MetricSpec
    args: tuple[Ref, ...]
    losses: tuple[str, ...] = ()  # figures of losses that it is updated with in place of outputs
    present: tuple[Ref, ...] = ()  # slots that say where its labels are present, of those that may be missing
    optional: frozenset[str] = frozenset()  # slots that some batches lack, which then skip it

    @property
    def refs(self) -> tuple[Ref, ...]:
        """Every output and slot that it reads."""
        return (*self.args, *self.present)

    @property
    def where(self) -> str:
        """Its name in messages."""
        return f'metrics["{self.key}"]'

    @property
    def outputs(self) -> list[Ref]:
        """The arguments that are outputs."""
        return [ref for ref in self.args if ref.space == OUTPUTS]

    @property
    def labels(self) -> list[Ref]:
        """The arguments that are slots."""
        return [ref for ref in self.args if ref.space == SLOTS]


Taker = Union[Term, MetricTerm]  # whatever takes outputs and slots
