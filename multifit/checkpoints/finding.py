"""The checkpoints of a folder, and the newest of them that can be used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from .hidden import is_hidden
from .manifest import MANIFEST, read_manifest
from .wholeness import problems

__all__ = ["CHECKPOINTS", "Entry", "checkpoints_folder", "entries", "newest_whole", "read_entry"]

CHECKPOINTS = "checkpoints"
_NAME = re.compile(r"epoch-(\d+)-step-(\d+)")
_SHOWN = 3  # problems of one checkpoint that are told


class Entry(NamedTuple):
    """A checkpoint by what its manifest says, whole or not.

    Attributes
    ----------
    path : Path
        Its folder.
    serial : int
        How manieth it is of those written to its parent, from 1; 0 where that is not told.
    step : int
        Batches trained before it.
    complete : bool
        Whether its epoch was over.
    monitor : str, optional
        The figure that was compared.
    value : float, optional
        That figure's value; None where it was not measured.
    """

    path: Path
    serial: int = 0
    step: int = 0
    complete: bool = False
    monitor: str | None = None
    value: float | None = None

    @property
    def order(self) -> tuple[int, int, bool]:
        """What is greater for the newer of two checkpoints.

        First the order of writing: who trains once more in the folder of an old run, which went further,
        wants the new run's checkpoints.
        """
        return self.serial, self.step, self.complete


def checkpoints_folder(folder: Path) -> Path:
    """Return where a run's checkpoints are: its ``checkpoints``, or `folder` where that is its own name."""
    return folder if folder.name == CHECKPOINTS else folder / CHECKPOINTS


def entries(parent: Path) -> list[Entry]:
    """Return the checkpoints in a folder, the newest last; those without a usable manifest are left out.

    Nothing but the manifests is read. A checkpoint that a killed process left under a hidden name is one too.
    """
    found = []
    for path in _candidates(parent):
        try:
            found.append(read_entry(path))
        except ValueError:
            continue
    return sorted(found, key=lambda entry: entry.order)


def newest_whole(folder: Path) -> tuple[Path | None, list[str]]:
    """Return the newest checkpoint that is whole.

    Parameters
    ----------
    folder : Path
        A run's folder (with ``checkpoints`` in it), a folder of checkpoints, or one checkpoint.

    Returns
    -------
    checkpoint : Path or None
        None if there is none.
    passed_over : list of str
        A line for each that would have been newer but is damaged, with the reason. A checkpoint without a
        readable manifest may have been the newest.
    """
    if not folder.is_dir():
        return None, [f"{folder} is no folder"]
    if (folder / CHECKPOINTS).is_dir():
        folder = folder / CHECKPOINTS
    candidates = [folder] if _is_checkpoint(folder) else _candidates(folder)
    readable = {}
    told = []
    for path in candidates:
        try:
            readable[path] = read_entry(path)
        except ValueError as error:
            if not is_hidden(path.name):  # a hidden one is no more than what a kill left
                told.append(f"{path}: {error}")
    for path in sorted(readable, key=lambda path: readable[path].order, reverse=True):
        wrong = problems(path)
        if not wrong:
            return path, told
        if not is_hidden(path.name):
            more = [f"and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
            told.append(f"{path}: {'; '.join(wrong[:_SHOWN] + more)}")
    return None, told


def _candidates(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return sorted(path for path in parent.iterdir() if _is_checkpoint(path))


def _is_checkpoint(path: Path) -> bool:
    named = _NAME.fullmatch(path.name) is not None
    return path.is_dir() and (named or (path / MANIFEST).exists())


def read_entry(path: Path) -> Entry:
    """Return what a checkpoint's manifest says.

    Raises
    ------
    ValueError
        There is none, or it cannot be used.
    """
    facts = read_manifest(path).facts
    monitor, value = facts.get("monitor"), facts.get("value")
    return Entry(
        path,
        _count(facts.get("serial")),
        _count(facts.get("step")),
        facts.get("complete") is True,
        monitor if isinstance(monitor, str) else None,
        float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None,
    )


def _count(fact: Any) -> int:
    return fact if isinstance(fact, int) else 0
