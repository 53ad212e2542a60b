"""What came of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Sequence

from ..spec import TaskSpec
from ..spec.names import listed
from .feed import Batch

__all__ = ["Result"]


@dataclass
class Result:
    """What a stage made of a batch: per device the outputs and loss values by name, and what to minimise."""

    spec: TaskSpec
    batch: Batch
    outputs: list[dict[str, Any]] = field(default_factory=list)
    parts: list[dict[str, Any]] = field(default_factory=list)
    objectives: list[Any] = field(default_factory=list)

    def views(self) -> dict[str, Any]:
        """Return ``pred``, ``label`` and ``loss``: lists per device, or dicts of such."""
        spec = self.spec
        return {
            "pred": _view(self.outputs, spec.output_names),
            "label": _view(self.batch.slots, spec.labels),
            "loss": _view(self.parts, [term.key for term in spec.terms]),
        }


def _view(devices_values: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Any:
    columns = {name: [values.get(name) for values in devices_values] for name in listed(names)}
    return next(iter(columns.values())) if len(columns) == 1 else columns
