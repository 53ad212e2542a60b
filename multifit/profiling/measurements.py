"""The measured times of one part of a training step, and of one operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import numpy as np

KINDS = ("forward", "backward", "update", "engine")
HOUSEKEEPING = ("DeleteVariable", "SetValueOp", "ResourceParallelRandomSetSeed")


@dataclass(frozen=True)
class Part:
    """One part of a training step: its times in milliseconds, one per step.

    Attributes
    ----------
    name : str
        Such as "forward". A piece of a part has the part's name in front: "forward/losses".
    times : tuple of float
        From the part's start, with an idle engine, until the engine has finished all of its work.
    python : tuple of float
        The time that Python works, without the time it waits. Measured in training where possible.
    in_training : tuple of float
        The time that Python spends in the part in training, without extra synchronisation. Empty if unknown.
    """

    name: str
    times: tuple[float, ...]
    python: tuple[float, ...] = ()
    in_training: tuple[float, ...] = ()

    @property
    def ms(self) -> float:
        """The median of the times."""
        return median(self.times)

    @property
    def mean(self) -> float:
        """The mean of the times. Above the median if the part comes in bursts."""
        return float(np.mean(self.times)) if self.times else 0.0

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and third quartile of the times."""
        low, high = np.percentile(self.times, (25, 75)) if self.times else (0.0, 0.0)
        return float(low), float(high)

    @property
    def python_ms(self) -> float:
        """The median time that Python works."""
        return median(self.python)

    @property
    def waits(self) -> float:
        """The median time that Python waits in training, for the engine or for a loader's workers."""
        return max(0.0, median(self.in_training) - self.python_ms)

    @property
    def is_piece(self) -> bool:
        """Whether this is a piece of another part."""
        return "/" in self.name

    @property
    def short_name(self) -> str:
        """The name without that of the part it is a piece of."""
        return self.name.partition("/")[2] or self.name

    def to_dict(self) -> dict[str, object]:
        """Return the figures for JSON, in milliseconds."""
        return {
            "ms": self.ms,
            "quartiles_ms": list(self.quartiles),
            "mean_ms": self.mean,
            "python_ms": self.python_ms,
            "waits_ms": self.waits if self.in_training else None,
        }


@dataclass(frozen=True)
class Operator:
    """One operator, as MXNet's profiler measured it.

    `count` is the number of calls per step, `ms` the milliseconds per step, summed over all devices.
    """

    name: str
    count: float
    ms: float

    @property
    def kind(self) -> str:
        """One of `KINDS`. "engine" is MXNet's own housekeeping."""
        return kind_of(self.name)

    def to_dict(self) -> dict[str, object]:
        """Return the figures for JSON."""
        return {"name": self.name, "kind": self.kind, "count": self.count, "ms": self.ms}


def kind_of(name: str) -> str:
    """Return the kind of an operator by its name. Adding up gradients counts as backward."""
    if name in HOUSEKEEPING or name.startswith("Copy"):
        return "engine"
    if "_backward" in name or name in ("add_n", "_grad_add"):  # "_backward" also within fused operators
        return "backward"
    return "update" if "_update" in name else "forward"


def median(values: Sequence[float]) -> float:
    """Return the median, or 0 if there are no values."""
    return float(np.median(values)) if len(values) else 0.0
