"""What came of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Sequence

from ...spec import TaskSpec
from ...spec.names import listed
from ..data.batches import Batch

__all__ = ["Result"]


@dataclass
class Result:
    """What a stage made of a batch: per device the outputs and loss values by name, and what to minimise."""

    spec: TaskSpec
    batch: Batch
    outputs: list[dict[str, Any]] = field(default_factory=list)
    parts: list[dict[str, Any]] = field(default_factory=list)
    objectives: list[Any] = field(default_factory=list)

    def named(self) -> dict[str, dict[str, list[Any]]]:
        """Return ``pred``, ``label`` and ``loss``: dicts of lists per device, whatever their number."""
        return {
            "pred": _columns(self.outputs, self.spec.output_names),
            "label": _columns(self.batch.slots, self.spec.labels),
            "loss": _columns(self.parts, [term.key for term in self.spec.terms]),
        }

    def views(self) -> dict[str, Any]:
        """Return ``pred``, ``label`` and ``loss``: lists per device, or dicts of such."""
        return {
            name: next(iter(columns.values())) if len(columns) == 1 else columns
            for name, columns in self.named().items()
        }


def _columns(devices_values: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, list[Any]]:
    return {name: [values.get(name) for values in devices_values] for name in listed(names)}
