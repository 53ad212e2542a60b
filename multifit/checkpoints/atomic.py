"""Write and remove checkpoints atomically, and clean up after processes that were killed meanwhile."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any, Callable

from ..files import flush
from .integrity import file_hash, foreign_files, list_files, verify
from .manifest import MANIFEST, Manifest, encode_manifest, read_info, read_manifest
from .temp_dirs import is_abandoned, is_temp_name, remove_temp_dir, temp_name

_DAY = 24 * 60 * 60.0


def write_checkpoint(
    parent: Path, name: str, fill: Callable[[Path], None], facts: Mapping[str, Any] | None = None
) -> Path:
    """Write a checkpoint completely or not at all.

    `fill` writes all files into a folder with a temporary name. The folder gets its manifest with the
    `facts`, is flushed to the disk file by file, and is renamed in one step. An older checkpoint of the same
    name is renamed to a temporary name first. Whenever the process is killed, one of the two checkpoints is
    left complete, and ``newest_checkpoint`` finds it under either name. Anything else of the same name, such
    as a checkpoint with a damaged manifest or with foreign files, is never removed, but renamed to
    ``<name>.old``, ``.old2`` …

    Raises
    ------
    OSError
        The checkpoint cannot be written or flushed to the disk. Whatever had its name before still has it,
        unless only the last flush failed: then the new checkpoint has it. No incomplete folder is left.
    ValueError
        `name` is not a valid folder name; a fact cannot be saved; `fill` wrote no file, or a link or device.
    """
    if not _is_valid_name(name):
        raise ValueError(f'a checkpoint cannot be named "{name}": valid is a folder name that is not hidden')
    Path(os.path.realpath(parent)).mkdir(parents=True, exist_ok=True)  # a link may point to nothing yet
    temporary, target = parent / temp_name(), parent / name
    temporary.mkdir()
    try:
        fill(temporary)
        manifest = Manifest(name, _hash_files(temporary), facts or {})
        (temporary / MANIFEST).write_bytes(encode_manifest(manifest))
        _flush_all(temporary)
        replaced = _rename(temporary, target)
        flush(parent)
        if replaced is not None:
            remove_temp_dir(replaced)
    finally:
        remove_temp_dir(temporary)
    recover(parent, target)
    return target


def remove_checkpoint(checkpoint: Path) -> None:
    """Remove a checkpoint, so that there is never an incomplete one under its name.

    Raises OSError if it cannot be removed, and ValueError if it is not a checkpoint, its manifest is damaged,
    or it holds foreign files. The folder is then unchanged.
    """
    reason = _why_not_removable(checkpoint)
    if reason is not None:
        raise ValueError(f"{checkpoint} is not removed: {reason}")
    temporary = checkpoint.with_name(temp_name())
    os.replace(checkpoint, temporary)
    remove_temp_dir(temporary)


def recover(parent: Path, newest: Path) -> None:
    """Clean up what killed processes left; called after a checkpoint was written.

    An abandoned temporary folder (see :func:`~multifit.checkpoints.temp_dirs.is_abandoned`) that is an intact
    checkpoint gets its name back, unless a newer checkpoint has it. All other abandoned folders are removed.
    Another machine's folder counts as abandoned if it is a day older than `newest`, which was just written.
    """
    limit = newest.stat().st_mtime - _DAY
    temp_dirs = sorted(path for path in parent.iterdir() if is_temp_name(path.name))
    for path in [path for path in temp_dirs if is_abandoned(path, limit)]:
        target = None if verify(path) else _free_target(path)
        if target is None:
            remove_temp_dir(path)
        else:
            _restore(path, target)


def _free_target(temporary: Path) -> Path | None:
    """Return the path where an intact checkpoint belongs; None if a newer one is there."""
    name = read_manifest(temporary).name
    if not _is_valid_name(name):
        return None
    target = temporary.with_name(name)
    try:
        return target if read_info(temporary).order > read_info(target).order else None
    except ValueError:  # nothing is there, or not a checkpoint
        return target


def _restore(temporary: Path, target: Path) -> None:
    try:
        replaced = _rename(temporary, target)
    except OSError:
        return  # it stays for the next time
    if replaced is not None:
        remove_temp_dir(replaced)


def _rename(temporary: Path, target: Path) -> Path | None:
    """Rename a folder to `target`; return a replaced checkpoint, now under a temporary name, for removal.

    If the renaming fails, what had the name before gets it back.
    """
    backup = _backup_path(target) if os.path.lexists(target) else None
    if backup is None:
        os.replace(temporary, target)
        return None
    os.replace(target, backup)
    try:
        os.replace(temporary, target)
    except BaseException:  # a second Ctrl-C can come at any time
        os.replace(backup, target)
        raise
    return backup if is_temp_name(backup.name) else None


def _backup_path(target: Path) -> Path:
    if _why_not_removable(target) is None:
        return target.with_name(temp_name())
    names = (f"{target.name}.old{number if number > 1 else ''}" for number in count(1))
    return next(path for path in map(target.with_name, names) if not os.path.lexists(path))


def _why_not_removable(folder: Path) -> str | None:
    try:
        names = foreign_files(folder)
    except ValueError as error:
        return f"it is not a checkpoint: {error}"
    return f"{names[0]} in it is not part of the checkpoint" if names else None


def _is_valid_name(name: str) -> bool:
    return bool(name) and not name.startswith(".") and Path(name).name == name


def _hash_files(folder: Path) -> dict[str, Any]:
    files, others = list_files(folder)
    invalid = [*others, *(name for name in files if name == MANIFEST)]
    if invalid or not files:
        what = f'"{invalid[0]}"' if invalid else "nothing"
        raise ValueError(
            f"{what} was written into the checkpoint; valid are files, not links, of any name but {MANIFEST}"
        )
    return {name: file_hash(folder / name) for name in files}


def _flush_all(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            flush(Path(parent, name))
        flush(Path(parent))
