"""The result of ``estimator.profile()``: where the time of a training step goes."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from ..files import atomic_path, atomic_write
from .advice import advice
from .plot import plot
from .step_times import StepTimes
from .summary import summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Profile(StepTimes):
    """The measurements of :meth:`multifit.MultiEstimator.profile`, to print, plot and save.

    See :class:`StepTimes` for the attributes.
    """

    @property
    def advice(self) -> list[str]:
        """What the figures clearly suggest, the most rewarding first; often empty."""
        return advice(self)

    def summary(self, operators: int = 10) -> str:
        """Return the parts, the longest operators (at most `operators`) and the advice as text."""
        return summary(self, operators)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw the parts and the longest operators; save the figure atomically if there is a path.

        The path's suffix sets the format. Raises ImportError if matplotlib is not installed.
        """
        figure = plot(self)
        if path is not None:
            with atomic_path(path) as temporary:
                figure.savefig(temporary, dpi=130)
        return figure

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return all figures as JSON; write them to a file, atomically, if there is a path."""
        content = json.dumps(self.to_dict(), indent=1)
        if path is not None:
            atomic_write(path, content + "\n")
        return content

    def to_dict(self) -> dict[str, object]:
        """Return all figures for JSON, in milliseconds."""
        return {
            "batches": self.batches,
            "samples": self.samples,
            "devices": list(self.devices),
            "how": self.how,
            "wall_ms": self.wall,
            "parts_ms": self.total,
            "python_ms": self.python,
            "engine_ms": self.engine if self.operators else None,
            "reading_ms": self.reading,
            "parts": {part.name: part.to_dict() for part in self.parts},
            "operators": [operator.to_dict() for operator in self.operators],
            "notes": list(self.notes),
            "advice": self.advice,
        }

    def __repr__(self) -> str:
        longest = sorted((part for part in self.parts if not part.is_piece), key=lambda part: -part.ms)[:3]
        shares = ", ".join(f"{part.name} {self.share(part):.0%}" for part in longest)
        return f"Profile({self.batches} batches, {self.wall:.3g} ms per step: {shares})"
