"""Losses and metrics whose names are resolved to references."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Mapping, Union

from ..protocols import Slots
from .names import LABELS, OUTPUTS, Ref, listed
from .specs import LossSpec, MetricSpec

MULTI_BOX = "gluoncv.loss.SSDMultiBoxLoss"


def is_multi_box(fn: object) -> bool:
    """Whether a loss is gluoncv's for SSD; a subclass may compute anything."""
    return f"{type(fn).__module__}.{type(fn).__qualname__}" == MULTI_BOX


@dataclass(frozen=True)
class MatchedAnchors:
    """What gluoncv's SSD loss is divided by: the anchors in a batch that are matched with an object.

    If none is, the loss is divided by `least`.
    """

    slot: str
    least: int

    def __call__(self, slots: Slots) -> Any:
        """Return 1 for each anchor of a device that is matched, else 0."""
        return slots[self.slot] > 0  # type: ignore[operator]


@dataclass(frozen=True)
class Taker:
    """A loss or a metric with its arguments; both take outputs and slots."""

    field: ClassVar[str]  # the field of the TaskSpec that declares it
    key: str
    spec: Union[LossSpec, MetricSpec]
    args: tuple[Ref, ...]
    present: tuple[Ref, ...] = ()  # for labels that may be missing: slots that say where they are present
    optional: frozenset[str] = frozenset()  # slots that some batches lack; it skips these batches

    @property
    def refs(self) -> tuple[Ref, ...]:
        """Everything that it reads."""
        return (*self.args, *self.present)

    @property
    def where(self) -> str:
        """Its name in messages."""
        return f'{self.field}["{self.key}"]'

    @property
    def outputs(self) -> list[Ref]:
        """The arguments that are outputs."""
        return [ref for ref in self.args if ref.space == OUTPUTS]

    @property
    def labels(self) -> list[Ref]:
        """The arguments that are slots."""
        return [ref for ref in self.args if ref.space == LABELS]

    def has_slots(self, arrays: Mapping[Ref, Any]) -> bool:
        """Whether a batch has the slots that it takes, among those that some batches lack."""
        return all(arrays.get(Ref(LABELS, name)) is not None for name in self.optional)


@dataclass(frozen=True)
class Term(Taker):
    """A term of the objective: one loss with its arguments."""

    field = "losses"
    spec: LossSpec
    parts: tuple[str, ...] = ("",)  # names of what it returns; one empty name for a single array
    minimized: int = 0  # index of the part that enters the objective

    @property
    def counts_samples(self) -> bool:
        """Whether its normalizer is the number of samples, in every batch."""
        return self.spec.normalize_by is None and not self.present and not self.optional

    @property
    def trainers(self) -> tuple[str, ...]:
        """The trainers whose parameters it trains; empty if it trains all parameters."""
        return listed(self.spec.trainers)

    @property
    def figures(self) -> list[str]:
        """Names of its figures: the loss, then its parts."""
        return [self.key, *(f"{self.key}.{part}" for part in self.parts if part)]


@dataclass(frozen=True)
class MetricTerm(Taker):
    """A metric with its arguments."""

    field = "metrics"
    spec: MetricSpec
    losses: tuple[str, ...] = ()  # figures of losses that it is updated with in place of outputs
