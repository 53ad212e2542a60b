"""Writing and removing a checkpoint in one step each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

from .disk import contents, fingerprint, flush
from .hidden import discard, hidden_name, is_name
from .leftovers import sweep
from .manifest import MANIFEST, Manifest, encoded
from .placing import not_ours, take_place

__all__ = ["remove", "write_checkpoint"]


def write_checkpoint(
    parent: Path, name: str, fill: Callable[[Path], None], facts: Mapping[str, Any] | None = None
) -> Path:
    """Write a checkpoint whole or not at all.

    The folder is filled under a hidden name, gets its manifest, is flushed to the disk file by file, and
    takes its name in one step. A checkpoint of that name first goes to a hidden name itself; killed at any
    moment, the process leaves one of the two whole, which `newest_whole` finds under whichever name it has.
    Something else of that name, a checkpoint whose manifest is damaged, or one to which somebody added a file
    is never removed: it is renamed to ``<name>.old``, or ``.old2`` ….

    Parameters
    ----------
    parent : Path
        The folder of the checkpoints; it is made where there is none.
    name : str
        The name of the new checkpoint.
    fill : callable
        Called with an empty folder, to write all files into it.
    facts : mapping of str to JSON, optional
        What the manifest tells besides.

    Returns
    -------
    Path
        The checkpoint.

    Raises
    ------
    OSError
        It cannot be written, or not be proved to be on the disk. Under its name stands what stood there
        before or, where only the last flush failed, the new one whole; nothing half is left.
    ValueError
        `name` is no folder's name; a fact cannot be saved; `fill` wrote no file, or something that is none.
    """
    if not is_name(name):
        raise ValueError(f'a checkpoint cannot be named "{name}": valid is a folder\'s name, not hidden')
    parent.mkdir(parents=True, exist_ok=True)
    temporary, target = parent / hidden_name(), parent / name
    temporary.mkdir()
    try:
        fill(temporary)
        manifest = Manifest(name, _listed(temporary), facts or {})
        (temporary / MANIFEST).write_bytes(encoded(manifest))
        _flush_all(temporary)
        former = take_place(temporary, target)
        flush(parent)
        if former is not None:
            discard(former)
    finally:
        discard(temporary)
    sweep(parent, target)
    return target


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint so that at no moment half of it has its name.

    Raises
    ------
    OSError
        It cannot be removed; it stands as before.
    ValueError
        It is no checkpoint, its manifest is damaged, or it holds somebody else's files; it is left alone.
    """
    reason = not_ours(checkpoint)
    if reason is not None:
        raise ValueError(f"{checkpoint} is not removed: {reason}")
    hidden = checkpoint.with_name(hidden_name())
    os.replace(checkpoint, hidden)
    discard(hidden)


def _listed(folder: Path) -> dict[str, Any]:
    files, others = contents(folder)
    wrong = [*others, *(name for name in files if name == MANIFEST)]
    if wrong or not files:
        what = f'"{wrong[0]}"' if wrong else "nothing"
        raise ValueError(
            f"{what} was written into the checkpoint; valid are files, of any name but {MANIFEST}, no links"
        )
    return {name: fingerprint(folder / name) for name in files}


def _flush_all(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            flush(Path(parent, name))
        flush(Path(parent))
