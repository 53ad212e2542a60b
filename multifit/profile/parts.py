"""What was measured of one part of a step, and of one operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

import numpy as np

__all__ = ["KINDS", "Operator", "Part", "kind_of", "median"]

KINDS = ("forward", "backward", "update", "engine")
HOUSEKEEPING = ("DeleteVariable", "SetValueOp", "ResourceParallelRandomSetSeed")


@dataclass(frozen=True)
class Part:
    """One part of a step, step by step, in milliseconds.

    Attributes
    ----------
    name : str
        Such as "forward"; what is within a part bears its name in front: "forward/losses".
    times : tuple of float
        From the part's begin until the engine has done all that it was given, begun with an idle engine.
    python : tuple of float
        What Python works in it, without what it waits; in training, where that is known.
    undisturbed : tuple of float
        What Python needs for it in training, where nothing waits that need not; empty where that is not
        known.
    """

    name: str
    times: tuple[float, ...]
    python: tuple[float, ...] = ()
    undisturbed: tuple[float, ...] = ()

    @property
    def ms(self) -> float:
        """The median of the times."""
        return median(self.times)

    @property
    def mean(self) -> float:
        """The mean of the times: above the median where the part comes in bursts."""
        return float(np.mean(self.times)) if self.times else 0.0

    @property
    def quartiles(self) -> tuple[float, float]:
        """The times' first and third quartile."""
        low, high = np.percentile(self.times, (25, 75)) if self.times else (0.0, 0.0)
        return float(low), float(high)

    @property
    def python_ms(self) -> float:
        """The median of what Python works."""
        return median(self.python)

    @property
    def waits(self) -> float:
        """What Python waits in it in training, for the engine or a loader's workers, at the median."""
        return max(0.0, median(self.undisturbed) - self.python_ms)

    @property
    def whole(self) -> bool:
        """Whether it is no piece of another part."""
        return "/" not in self.name

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON has them, in milliseconds."""
        return {
            "ms": self.ms,
            "quartiles_ms": list(self.quartiles),
            "mean_ms": self.mean,
            "python_ms": self.python_ms,
            "waits_ms": self.waits if self.undisturbed else None,
        }


@dataclass(frozen=True)
class Operator:
    """What MXNet's profiler says of one operator.

    Attributes
    ----------
    name : str
        MXNet's name for it.
    count : float
        How often it runs in a step.
    ms : float
        Its time in a step, over all devices, in milliseconds.
    """

    name: str
    count: float
    ms: float

    @property
    def kind(self) -> str:
        """One of `KINDS`, told by the name; "engine" is MXNet's own housekeeping."""
        return kind_of(self.name)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON has them."""
        return {"name": self.name, "kind": self.kind, "count": self.count, "ms": self.ms}


def kind_of(name: str) -> str:
    """Return the kind of an operator of this name; what adds up gradients counts as backward."""
    if name in HOUSEKEEPING or name.startswith("Copy"):
        return "engine"
    if "_backward" in name or name in ("add_n", "_grad_add"):  # also among others that run in a row
        return "backward"
    return "update" if "_update" in name else "forward"


def median(values: Sequence[float]) -> float:
    """Return the median; 0 of nothing."""
    return float(np.median(values)) if len(values) else 0.0
