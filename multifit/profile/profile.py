"""A profile: where the time of a training step goes."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

from ..files import atomic_path, atomic_write
from . import picture, text
from .advice import advice
from .parts import Operator, Part

__all__ = ["Profile"]


@dataclass(frozen=True, repr=False)
class Profile:
    """What :meth:`multifit.MultiEstimator.profile` measured.

    Attributes
    ----------
    wall : float
        Milliseconds of a step in an undisturbed run: what training takes. The parts add up to more where
        Python and the engine work at the same time.
    parts : tuple of Part
        data, forward, backward, update, figures and handlers, each followed by what it is made of.
    operators : tuple of Operator
        From MXNet's profiler, the longest first; empty where it could not be used.
    reading : float
        Milliseconds that reading all figures takes, once an epoch.
    batches : int
        How many steps each measurement has.
    samples : int
        Number of samples in most batches.
    devices : tuple of str
        Where it ran.
    how : str
        What is one graph, and what is not.
    hybridizable : bool
        Whether the net runs operator by operator, and ``net.hybridize()`` would change that.
    """

    wall: float
    parts: tuple[Part, ...]
    operators: tuple[Operator, ...] = ()
    reading: float = 0.0
    batches: int = 0
    samples: int = 0
    devices: tuple[str, ...] = ("cpu(0)",)
    how: str = ""
    hybridizable: bool = False
    notes: tuple[str, ...] = field(default=())

    @property
    def total(self) -> float:
        """The sum of the parts, in milliseconds: a step in which nothing overlaps."""
        return sum(part.ms for part in self.parts if part.whole)

    @property
    def python(self) -> float:
        """Milliseconds of a step in which Python works, and does not wait."""
        return sum(part.python_ms for part in self.parts if part.whole)

    @property
    def engine(self) -> float:
        """Milliseconds of a step in which an operator runs, per device."""
        return sum(operator.ms for operator in self.operators) / len(self.devices)

    @property
    def idle(self) -> float:
        """The share of a step in which the engine has nothing to do, from 0 to 1; 1 where it is not known.

        No more can be gained by making Python faster.
        """
        return min(1.0, max(0.0, 1 - self.engine / self.wall)) if self.wall else 0.0

    @property
    def advice(self) -> list[str]:
        """What the figures clearly say could be done, the most rewarding first; often nothing."""
        return advice(self)

    def part(self, name: str) -> Part:
        """Return a part by its name; a part that took no time at all has no times.

        Parameters
        ----------
        name : str
            Such as "forward" or "forward/losses".
        """
        return next((part for part in self.parts if part.name == name), Part(name, ()))

    def share(self, part: Part) -> float:
        """Return what share of the sum of all parts a part is, from 0 to 1."""
        return part.ms / self.total if self.total else 0.0

    def summary(self, operators: int = 10) -> str:
        """Return the parts, the longest operators and the advice as text.

        Parameters
        ----------
        operators : int
            How many of them.
        """
        return text.summary(self, operators)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw the parts and the longest operators; return the ``matplotlib.figure.Figure``.

        Parameters
        ----------
        path : path, optional
            Where to write it, whole or not at all; the suffix says as what.

        Raises
        ------
        ImportError
            matplotlib is not installed.
        """
        figure = picture.draw(self)
        if path is not None:
            with atomic_path(path) as temporary:
                figure.savefig(temporary, dpi=130)
        return figure

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return all figures as JSON, and write it to `path` (whole or not at all) where one is given."""
        found = {
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
        content = json.dumps(found, indent=1)
        if path is not None:
            atomic_write(path, content + "\n")
        return content

    def __repr__(self) -> str:
        first = sorted((part for part in self.parts if part.whole), key=lambda part: -part.ms)[:3]
        said = ", ".join(f"{part.name} {self.share(part):.0%}" for part in first)
        return f"Profile({self.batches} batches, {self.wall:.3g} ms a step: {said})"
