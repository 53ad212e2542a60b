"""Verify that a checkpoint holds the files that were written, by size and SHA-256."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ..files import sha256
from .manifest import MANIFEST, read_manifest

_READ = (".json", ".npz", ".params")  # of files that are read if they are there, such as those of a rank


def verify(checkpoint: Path) -> list[str]:
    """Return the problems of a checkpoint, one line per file; an empty list if it is intact.

    Only files inside the folder are opened, whatever the manifest lists. Links are not followed. A file that
    is not in the manifest is a problem if it could be read as part of the checkpoint. Others, such as the
    ``.DS_Store`` of macOS, are ignored.
    """
    if not checkpoint.is_dir():
        return [f"{checkpoint.name} is not a folder"]
    try:
        expected = read_manifest(checkpoint).files
    except ValueError as error:
        return [str(error)]
    files, others = list_files(checkpoint)
    problems = [f"{name} is a link or a device; valid are files" for name in others]
    for name, entry in expected.items():
        if _is_outside(name):
            problems.append(f"{name} is outside the checkpoint's folder")
        elif name in files:
            problems += _file_problems(checkpoint, name, entry)
        elif name not in others:
            problems.append(f"{name} is missing")
    foreign = [name for name in files if name not in {*expected, MANIFEST} and _may_be_read(name)]
    return problems + [f"{name} is not part of the checkpoint: move it elsewhere" for name in foreign]


def foreign_files(checkpoint: Path) -> list[str]:
    """Return what is in a checkpoint's folder but not in its manifest: somebody else put it there."""
    expected = {*read_manifest(checkpoint).files, MANIFEST}
    files, others = list_files(checkpoint)
    return [name for name in [*files, *others] if name not in expected]


def list_files(folder: Path) -> tuple[list[str], list[str]]:
    """Return the relative paths (with slashes, sorted) of all files, and of what is neither file nor folder.

    Links belong to the second list whatever they point to, and are not followed.
    """
    files: list[str] = []
    others: list[str] = []
    for parent, folders, names in os.walk(folder):
        for path in (Path(parent, name) for name in [*folders, *names]):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                others.append(path.relative_to(folder).as_posix())
            elif path.is_file():
                files.append(path.relative_to(folder).as_posix())
    return sorted(files), sorted(others)


def file_hash(path: Path) -> dict[str, Any]:
    """Return the ``size`` in bytes and the ``sha256`` of a file."""
    return {"size": path.stat().st_size, "sha256": sha256(path)}


def _may_be_read(name: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix.lower() in _READ and not any(part.startswith(".") for part in path.parts)


def _is_outside(name: str) -> bool:
    path = PurePosixPath(name)
    return path.is_absolute() or ".." in path.parts or str(path) != name


def _file_problems(checkpoint: Path, name: str, expected: Any) -> list[str]:
    if not isinstance(expected, Mapping):
        return [f"{name} has neither size nor hash in {MANIFEST}"]
    try:
        actual = file_hash(checkpoint / name)
    except OSError as error:
        return [f"{name} cannot be read: {error.strerror}"]
    if actual["size"] != expected.get("size"):
        return [f"{name} has {actual['size']} bytes instead of {expected.get('size')}"]
    if actual["sha256"] != expected.get("sha256"):
        return [f"{name} is damaged: its hash does not match the manifest"]
    return []
