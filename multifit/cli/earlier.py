"""The earlier run in a folder in which another one begins anew: it is kept, apart from the new one."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from ..checkpoints import CHECKPOINTS
from .record import NAME as RECORD
from .record import recorded_pictures
from .results import CURVES, HISTORY, PARAMETERS, PLAN, PLAN_TEXT

EARLIER = "earlier"
_FILES = CHECKPOINTS, PARAMETERS, HISTORY, PLAN, PLAN_TEXT, CURVES, RECORD


def set_aside(folder: Path) -> Path | None:
    """Move what the last run wrote to a folder into ``earlier`` there, in place of the run before it.

    Returns that folder, which is a run's folder again; None if no run has been in `folder`. Where a file is a
    link, what it points to is moved, to a folder ``earlier`` beside it. What the disk refuses to move stays.
    """
    pictures = recorded_pictures(folder)
    if pictures is None:
        return None
    earlier = folder / EARLIER
    if recorded_pictures(earlier) is not None:
        shutil.rmtree(earlier, ignore_errors=True)
    for name in (*pictures, *_FILES):  # the record last: a folder without one is no run's
        with suppress(OSError):
            _move(folder / name)
    return earlier


def _move(path: Path) -> None:
    source = path.resolve(strict=True)
    target = source.parent / EARLIER / path.name
    target.parent.mkdir(exist_ok=True)
    if target.is_dir():
        shutil.rmtree(target)
    os.replace(source, target)
    if path.is_symlink() and target.is_dir():
        source.mkdir()  # or the link would point to nothing
