"""The plan of several loaders: how much an epoch takes from each, and for what."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import counted


@dataclass(frozen=True)
class LoaderPlan:
    """One of several loaders, and what an epoch takes from it."""

    name: str
    size: int  # how many batches it has
    batches: int  # how many an epoch takes; if these are more, the loader starts again
    slots: tuple[str, ...]  # of its batches
    sampling: str  # how loaders are mixed

    def row(self) -> tuple[str, str, str, str]:
        """Return what it is, its name, how much is taken, and what its batches hold."""
        passes = f"{self.batches / self.size:.3g}"
        word = "pass" if passes == "1" else "passes"
        taken = f"{counted(self.batches, 'batch', 'batches')}, {passes} {word}"
        return "loader", self.name, taken, ", ".join(self.slots)
