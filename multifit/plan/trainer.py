"""The plan of one trainer: its parameters and its optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import counted

__all__ = ["TrainerPlan", "span"]


@dataclass(frozen=True)
class TrainerPlan:
    """One trainer, with the names of the parameters that it updates."""

    name: str
    optimizer: str
    learning_rate: float  # at the time of the check
    parameters: tuple[str, ...]
    size: int  # how many numbers the parameters hold
    clip_norm: float | None = None
    calls: int | None = None  # calls of operators that update them; None if the optimizer decides

    def row(self) -> tuple[str, str, str, str]:
        """Return what it is, its name, what it updates, and how."""
        clip = f", gradients clipped to norm {self.clip_norm:g}" if self.clip_norm is not None else ""
        calls = f", in {counted(self.calls, 'call')}" if self.calls else ""
        options = f"{self.optimizer}, learning rate {self.learning_rate:g}{clip}{calls}"
        return (
            "trainer",
            self.name,
            f"{counted(len(self.parameters), 'parameter')}, {self.size:,} numbers",
            f"{options}: {span(self.parameters)}",
        )


def span(names: tuple[str, ...]) -> str:
    """Return up to three names, or the first and the last of more."""
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} … {names[-1]}"
