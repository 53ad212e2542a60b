"""What a checkpoint holds of an engine, as the rest of the package sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping, Protocol, Sequence

from ..protocols import Numbers


class Snapshot(Protocol):
    """Writes an engine's part of a run into a folder, and reads it back; nothing read can run code."""

    def versions(self) -> dict[str, str]:
        """Return the versions that a run's figures depend on most, by name."""

    def identity(self) -> dict[str, Any]:
        """Return what the run is made of, as a JSON tree."""

    def differing(self, one: Mapping[str, Any], other: Mapping[str, Any], there: str, here: str) -> list[str]:
        """Return a line for everything in which two identities differ; `there` is where `one` is."""

    def differences(self, folder: Path) -> list[str]:
        """Return a line for everything in which the run that wrote a checkpoint and this one differ."""

    def write(self, folder: Path) -> list[str]:
        """Write everything of the engine, between two batches; return the names of what cannot be saved."""

    def read(self, folder: Path, ranks: int = 1, complete: bool = False) -> dict[str, str]:
        """Load what :meth:`write` wrote; return why, by name, figures start from zero.

        `ranks` is how many wrote it, and `complete` says whether an epoch had ended.
        """

    def read_random(self, folder: Path) -> None:
        """Set the states of NumPy's and Python's generators to what they were then."""

    def share_trainers(self) -> None:
        """Give the trainers of all ranks the first one's states and counters, if any rank's were used."""

    def write_tree(self, folder: Path, name: str, tree: Any) -> None:
        """Write a tree of plain values and arrays; raises ValueError for any other value."""

    def read_tree(self, folder: Path, name: str) -> Any:
        """Read what :meth:`write_tree` wrote; OSError if it is missing, ValueError if it is damaged."""

    def read_own_tree(self, folder: Path, rank: int, name: str) -> Any:
        """Return a rank's own tree, or else the first rank's."""

    def gather_own(self, trees: Mapping[str, Any]) -> list[dict[str, bytes]]:
        """Return each rank's files of `trees` and of its own state, of those that differ from the first's."""

    def write_ranks(self, folder: Path, ranks: list[dict[str, bytes]]) -> None:
        """Write what :meth:`gather_own` returned."""

    def from_first(self, arrays: Sequence[Numbers]) -> list[Numbers]:
        """Return the first rank's arrays; what other ranks give does not matter."""
