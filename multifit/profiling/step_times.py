"""All measurements of a training step, and the figures derived from them."""

from __future__ import annotations

from dataclasses import dataclass

from .measurements import Operator, Part

NEGLIGIBLE = 0.005  # milliseconds


@dataclass(frozen=True, repr=False)
class StepTimes:
    """The time of a training step, of its parts and of its operators.

    Attributes
    ----------
    wall : float
        Milliseconds per step in normal training. The parts add up to more than this if Python and the
        engine work at the same time.
    parts : tuple of Part
        data, forward, backward, update, figures and handlers, each followed by its pieces.
    operators : tuple of Operator
        From MXNet's profiler, the longest first. Empty if the profiler is not available.
    reading : float
        Milliseconds to read all figures, once per epoch.
    batches : int
        The number of steps in each measurement.
    samples : int
        The number of samples in most batches.
    devices : tuple of str
        Such as ``("gpu(0)", "gpu(1)")``.
    how : str
        What runs as one graph, and what does not and why.
    hybridizable : bool
        Whether the net runs operator by operator, and ``net.hybridize()`` would change that.
    notes : tuple of str
        Remarks on the measurement, such as why there are no operators.
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
    notes: tuple[str, ...] = ()

    @property
    def total(self) -> float:
        """The sum of the parts in milliseconds: a step in which nothing overlaps."""
        return sum(part.ms for part in self.parts if not part.is_piece)

    @property
    def python(self) -> float:
        """Milliseconds per step in which Python works, without the time it waits."""
        return sum(part.python_ms for part in self.parts if not part.is_piece)

    @property
    def engine(self) -> float:
        """Milliseconds per step in which an operator runs, per device."""
        return sum(operator.ms for operator in self.operators) / len(self.devices)

    @property
    def idle(self) -> float:
        """The share of a step in which the engine is idle, from 0 to 1; 1 if the operators are unknown.

        Making Python faster cannot gain more than this.
        """
        return 1 - self.of_step(self.engine) if self.wall else 0.0

    @property
    def notable_parts(self) -> list[Part]:
        """The parts with their pieces, except for pieces that take hardly any time."""
        return [part for part in self.parts if not part.is_piece or max(part.ms, part.mean) >= NEGLIGIBLE]

    def part(self, name: str) -> Part:
        """Return a part, such as "forward" or "forward/losses"; one that was not measured has no times."""
        return next((part for part in self.parts if part.name == name), Part(name, ()))

    def pieces(self, name: str) -> list[Part]:
        """Return the pieces of a part."""
        return [part for part in self.parts if part.name.startswith(f"{name}/")]

    def of_step(self, ms: float) -> float:
        """Return a time's share of a step, from 0 to 1.

        The time may be longer than a step: operators run side by side, and other steps were measured.
        """
        return min(1.0, ms / self.wall)

    def share(self, part: Part) -> float:
        """Return a part's share of the sum of all parts, from 0 to 1."""
        return part.ms / self.total if self.total else 0.0
