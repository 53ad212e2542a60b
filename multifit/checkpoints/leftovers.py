"""What killed processes left among the checkpoints."""

from __future__ import annotations

from pathlib import Path

from .finding import read_entry
from .hidden import discard, is_abandoned, is_hidden, is_name
from .manifest import read_manifest
from .placing import take_place
from .wholeness import problems

__all__ = ["sweep"]

_DAY = 24 * 60 * 60.0


def sweep(parent: Path, newest: Path) -> None:
    """Clear away what killed processes left; to be called after a checkpoint was written.

    A hidden folder that is abandoned (see `is_abandoned`; another machine's after a day) and whole was about
    to take its name, or had just made room for another: it gets its name, unless a newer one has that. All
    others that are abandoned are removed.

    Parameters
    ----------
    parent : Path
        The folder of the checkpoints.
    newest : Path
        The checkpoint just written; its time is what others are compared with.

    Raises
    ------
    OSError
        `parent` cannot be read.
    """
    limit = newest.stat().st_mtime - _DAY
    hidden = sorted(path for path in parent.iterdir() if is_hidden(path.name))
    for path in [path for path in hidden if is_abandoned(path, limit)]:
        target = None if problems(path) else _vacant(path)
        if target is None:
            discard(path)
        else:
            _reinstate(path, target)


def _vacant(path: Path) -> Path | None:
    """Return where a whole checkpoint belongs; None if a newer one is there."""
    name = read_manifest(path).name
    if not is_name(name):
        return None
    target = path.with_name(name)
    try:
        return target if read_entry(path).order > read_entry(target).order else None
    except ValueError:  # nothing is there, or no checkpoint
        return target


def _reinstate(path: Path, target: Path) -> None:
    try:
        former = take_place(path, target)
    except OSError:
        return  # it stays for the next time
    if former is not None:
        discard(former)
