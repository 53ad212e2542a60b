"""Whether a checkpoint is what was written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from .disk import contents, fingerprint
from .manifest import MANIFEST, read_manifest

__all__ = ["problems", "strangers"]


def problems(checkpoint: Path) -> list[str]:
    """Return what is wrong with a checkpoint, a line for each file; nothing if it is whole.

    Only files that are in the folder are opened, whatever the manifest names; links are not followed.

    Parameters
    ----------
    checkpoint : Path
        A checkpoint's folder.
    """
    if not checkpoint.is_dir():
        return [f"{checkpoint.name} is no folder"]
    try:
        listed = read_manifest(checkpoint).files
    except ValueError as error:
        return [str(error)]
    files, others = contents(checkpoint)
    found = [f"{name} is a link or a device; valid are files" for name in others]
    for name, promised in listed.items():
        if _leaves(name):
            found.append(f"{name} leads out of the checkpoint's folder")
        elif name in files:
            found += _changes(checkpoint, name, promised)
        elif name not in others:
            found.append(f"{name} is missing")
    return found + [f"{name} does not belong to it" for name in files if name not in {*listed, MANIFEST}]


def strangers(checkpoint: Path) -> list[str]:
    """Return what is in a checkpoint's folder and not of the checkpoint: somebody else put it there.

    Raises
    ------
    ValueError
        It is no checkpoint, or its manifest is damaged.
    """
    own = {*read_manifest(checkpoint).files, MANIFEST}
    files, others = contents(checkpoint)
    return [name for name in [*files, *others] if name not in own]


def _leaves(name: str) -> bool:
    path = PurePosixPath(name)
    return path.is_absolute() or ".." in path.parts or str(path) != name


def _changes(checkpoint: Path, name: str, promised: Any) -> list[str]:
    if not isinstance(promised, Mapping):
        return [f"{name} has neither size nor hash in {MANIFEST}"]
    try:
        actual = fingerprint(checkpoint / name)
    except OSError as error:
        return [f"{name} cannot be read: {error.strerror}"]
    if actual["size"] != promised.get("size"):
        return [f"{name} has {actual['size']} bytes instead of {promised.get('size')}"]
    if actual["sha256"] != promised.get("sha256"):
        return [f"{name} is not as it was written: its hash differs"]
    return []
