"""Keeps the files of the earlier run in a folder when a new run begins there."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from itertools import count
from pathlib import Path

from ..checkpoints import CHECKPOINTS, MANIFEST
from ..gluon.snapshot.parameters import OTHERS
from .outputs import PREDICTIONS
from .record import RECORD, recorded_pictures
from .results import CURVES, EXPORT, HISTORY, LOG, PARAMETERS, PLAN, PLAN_TEXT

EARLIER = "earlier"
_FILES = CHECKPOINTS, PARAMETERS, OTHERS, HISTORY, PLAN, PLAN_TEXT, CURVES, EXPORT, PREDICTIONS, RECORD


def set_aside(folder: Path, logged: int) -> Path | None:
    """Move what the last run wrote to a folder into its subfolder ``earlier``, in place of the run before it.

    The first `logged` bytes of the log are the last run's; the rest is the new run's, which has the log open,
    and stays. Returns the subfolder, which is a run's folder again. Returns None if no run has been in
    `folder`, or if the last one left neither a checkpoint nor parameters: its other files are then removed.
    If a file is a link, the file that it points to gets a new name beside the old one, and ``earlier`` gets a
    link to it. What the disk refuses to move stays.
    """
    pictures = recorded_pictures(folder)
    if pictures is None:
        return None
    earlier = folder / EARLIER
    kept = _has_results(folder) or _was_cut_off(earlier)
    if kept:
        with suppress(OSError):
            _remove_run(earlier)
    with suppress(OSError):
        _cut_log(folder / LOG, logged, earlier / LOG if kept else None)
    for name in (*pictures, *_FILES):  # the record last: without it, the folder is not a run's
        with suppress(OSError):
            if kept:
                _move(folder / name, earlier / name)
            else:
                (folder / name).resolve().unlink()
    return earlier if kept else None


def _has_results(folder: Path) -> bool:
    return (folder / PARAMETERS).exists() or any((folder / CHECKPOINTS).glob(f"*/{MANIFEST}"))


def _was_cut_off(earlier: Path) -> bool:
    """Return whether a run was killed while it moved another one to this folder."""
    return earlier.is_dir() and recorded_pictures(earlier) is None


def _cut_log(log: Path, length: int, target: Path | None) -> None:
    """Move the first bytes of a log to the end of another file; without one, drop them."""
    with log.open("r+b") as file:  # in place: a process that appends to it goes on at its new end
        first, rest = file.read(length), file.read()
        if target is not None:
            target.parent.mkdir(exist_ok=True)
            with target.open("ab") as copy:
                copy.write(first)
        file.seek(0)
        file.write(rest)
        file.truncate()


def _move(path: Path, target: Path) -> None:
    source = path.resolve(strict=True)
    target.parent.mkdir(exist_ok=True)
    _remove(target, moved=True)  # left by a move that was cut off
    if path.is_symlink():
        link, target = target, _free_name(source)
        link.symlink_to(target)  # first: whenever the process is killed, something leads to the files
    os.replace(source, target)


def _free_name(source: Path) -> Path:
    """Return a path beside a file, with its suffix, where nothing is."""
    names = (f"{source.stem}.{EARLIER}{number or ''}{source.suffix}" for number in count())
    return next(path for path in map(source.with_name, names) if not os.path.lexists(path))


def _remove_run(folder: Path) -> None:
    """Remove a run that was set aside, and the one before it in its own folder."""
    pictures = recorded_pictures(folder)
    if pictures is not None:
        _remove_run(folder / EARLIER)
        for name in sorted(os.listdir(folder), key=RECORD.__eq__):  # the record last
            _remove(folder / name, moved=name in (*pictures, *_FILES))


def _remove(path: Path, moved: bool) -> None:
    """Remove a file or a folder if it is there; if :func:`_move` made it, also what it links to."""
    with suppress(OSError):
        if moved and path.is_symlink():
            target = path.resolve()
            if f".{EARLIER}" in target.name:
                _remove(target, moved=False)
        path.unlink() if path.is_symlink() or not path.is_dir() else shutil.rmtree(path)
