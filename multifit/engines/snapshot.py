"""What a checkpoint holds of an engine, as the rest of the package sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping, Protocol

from ..protocols import Array


class Snapshot(Protocol):
    """Writes an engine's part of a run into a folder, and reads it back; reading cannot run any code."""

    def versions(self) -> dict[str, str]:
        """Return the versions that a run's figures depend on most, by name."""

    def identity(self) -> dict[str, Any]:
        """Return what the run is made of, as a JSON tree."""

    def differing(self, one: Mapping[str, Any], other: Mapping[str, Any], there: str, here: str) -> list[str]:
        """Return a line for every difference of two identities; `there` and `here` say where each one is."""

    def differences(self, folder: Path) -> list[str]:
        """Return a line for every difference between the run that wrote a checkpoint and this one."""

    def write(self, folder: Path, evaluated: Mapping[str, Array] = ...) -> None:
        """Write the engine's whole state, between two batches.

        `evaluated` are the values that evaluations use in place of some parameters, by name.
        """

    def read(self, folder: Path, ranks: int = 1, complete: bool = False) -> list[str]:
        """Load what :meth:`write` wrote; return a line for everything that starts anew.

        `ranks` is the number of ranks that wrote it, and `complete` says whether an epoch had ended.
        """

    def read_random(self, folder: Path) -> None:
        """Set NumPy's and Python's random generators to the states that the checkpoint holds."""

    def share_trainers(self) -> None:
        """Give the trainers of all ranks the first rank's states and counters, if any rank has used them."""

    def write_tree(self, folder: Path, name: str, tree: Any) -> None:
        """Write a tree of plain values and arrays; raises ValueError for any other value."""

    def read_tree(self, folder: Path, name: str) -> Any:
        """Read what :meth:`write_tree` wrote; raises OSError if it is missing, ValueError if damaged."""

    def read_own_tree(self, folder: Path, rank: int, name: str) -> Any:
        """Return a rank's own tree, or else the first rank's."""

    def gather_own(self, trees: Mapping[str, Any]) -> list[dict[str, bytes]]:
        """Return, for each rank, the files of `trees` and of its own state that differ from rank 0's."""

    def write_ranks(self, folder: Path, ranks: list[dict[str, bytes]]) -> None:
        """Write what :meth:`gather_own` returned."""
