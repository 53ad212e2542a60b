"""Checkpoint folders: written completely or not at all, hashed, listed, and deleted when no longer needed.

This module does not know what is in a checkpoint. The caller fills a folder when writing; a reader gets the
newest folder whose files are exactly what was written. Only one process at a time may write to a folder of
checkpoints: see :mod:`multifit.utils.locks`.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from .utils.files import flush, sha256
from .utils.text import limited

CHECKPOINTS, MANIFEST = "checkpoints", "manifest.json"
VERSION = 1  # the format of all files of a checkpoint
INCOMPLETE = ".incomplete"  # the folder of a checkpoint that is being written or removed
OLD = ".old"  # the end of the name of a checkpoint that is being replaced
_SHOWN = 3  # problems shown per checkpoint


class CheckpointInfo(NamedTuple):
    """What the manifest says about a checkpoint; its files are not verified."""

    path: Path
    files: Mapping[str, list[Any]]  # each file's size in bytes and SHA-256, by its path in the folder
    facts: Mapping[str, Any] = MappingProxyType({})  # of the writer: epoch, step …

    @property
    def run(self) -> int:
        """The number, from 1, of the run in this folder."""
        return int(self.facts.get("run", 0))

    @property
    def step(self) -> int:
        """The number of batches trained before it."""
        return int(self.facts.get("step", 0))

    @property
    def values(self) -> Mapping[str, float]:
        """The values of the monitored figures that were measured."""
        return dict(self.facts.get("values", {}))

    @property
    def directions(self) -> Mapping[str, str]:
        """Whether lower ("min") or higher values ("max") of the monitored figures are better."""
        return dict(self.facts.get("directions", {}))

    @property
    def order(self) -> tuple[int, int, bool]:
        """Sort key, greater for newer checkpoints.

        A new run in the folder of an old one, which may have trained longer, must find its own checkpoints.
        """
        return self.run, self.step, bool(self.facts.get("complete"))


def write_checkpoint(
    parent: Path, name: str, fill: Callable[[Path], None], facts: Mapping[str, Any] = MappingProxyType({})
) -> CheckpointInfo:
    """Write a checkpoint completely or not at all.

    `fill` writes all files into a folder with a temporary name. Each is hashed and flushed to the disk, the
    manifest with the hashes and the `facts` is written last, and the folder is renamed. A checkpoint of the
    same name is replaced: whenever the process is killed, one of the two is complete, and
    :func:`newest_checkpoint` finds it. What a killed process has left unfinished is removed. Raises OSError
    if the checkpoint cannot be written or flushed to the disk; then no incomplete folder is left.
    """
    Path(os.path.realpath(parent)).mkdir(parents=True, exist_ok=True)  # a link may point to nothing yet
    temporary, target, old = parent / INCOMPLETE, parent / name, parent / f"{name}{OLD}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        fill(temporary)
        files = {}
        for path in sorted(path for path in temporary.rglob("*") if path.is_file()):
            files[path.relative_to(temporary).as_posix()] = [path.stat().st_size, sha256(path)]
            flush(path)
        (temporary / MANIFEST).write_bytes(_encode({**facts, "version": VERSION, "files": files}))
        for path in (temporary / MANIFEST, *(path for path in temporary.rglob("*") if path.is_dir())):
            flush(path)
        flush(temporary)
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)  # of a process that was killed here
            os.replace(target, old)
        os.replace(temporary, target)
        flush(parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if old.exists():
        remove_checkpoint(old)
    return CheckpointInfo(target, files, facts)


def remove_checkpoint(checkpoint: Path) -> None:
    """Remove a checkpoint; there is never an incomplete one under its name. Raises OSError if that fails."""
    temporary = checkpoint.with_name(INCOMPLETE)
    shutil.rmtree(temporary, ignore_errors=True)
    os.replace(checkpoint, temporary)
    shutil.rmtree(temporary, ignore_errors=True)


def read_info(checkpoint: Path) -> CheckpointInfo:
    """Read the manifest of a checkpoint; its files are not verified.

    Raises ValueError if it is missing or damaged, or if another version of multifit wrote it.
    """
    try:
        data = (checkpoint / MANIFEST).read_bytes()
    except FileNotFoundError:
        raise ValueError(f"{MANIFEST} is missing") from None
    except OSError as error:
        raise ValueError(f"{MANIFEST} cannot be read: {error.strerror}") from None
    try:
        content = json.loads(data)
        content.pop("sha256")
        intact = _encode(content) == data
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        intact = False
    if not intact:
        raise ValueError(f"{MANIFEST} is damaged: its hash does not match its content")
    version = content.pop("version", None)
    if version != VERSION:
        raise ValueError(f"{MANIFEST} has format version {version}, and this multifit reads {VERSION}")
    return CheckpointInfo(checkpoint, content.pop("files"), content)


def verify(checkpoint: CheckpointInfo) -> list[str]:
    """Read all files of a checkpoint; return its problems, one line per file."""
    problems = []
    for name, (size, digest) in checkpoint.files.items():
        path = checkpoint.path / name
        try:
            if not path.is_file():
                problems.append(f"{name} is missing")
            elif path.stat().st_size != size:
                problems.append(f"{name} has {path.stat().st_size} bytes instead of {size}")
            elif sha256(path) != digest:
                problems.append(f"{name} is damaged: its hash does not match the manifest")
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror}")
    return problems


def checkpoints_folder(folder: Path) -> Path:
    """Return the folder of a run's checkpoints: its ``checkpoints``, or `folder` itself if so named."""
    return folder if folder.name == CHECKPOINTS else folder / CHECKPOINTS


def list_checkpoints(parent: Path) -> list[CheckpointInfo]:
    """Return the checkpoints in a folder that have a valid manifest, the newest last."""
    return _read_all(parent.glob("epoch-*"))[0]


def newest_checkpoint(folder: Path) -> tuple[CheckpointInfo | None, list[str]]:
    """Find the newest intact checkpoint, by reading it; None if there is none.

    The folder is a run's, one of checkpoints, or one checkpoint. Also returns a line for each damaged
    checkpoint that is or may be newer, with the reason; one without a readable manifest may be newer.
    """
    infos, skipped = _read_all(checkpoint_paths(folder))
    return _first_intact(reversed(infos), skipped)


def best_checkpoint(folder: Path) -> tuple[CheckpointInfo | None, list[str]]:
    """Find the intact checkpoint with the best value of a monitored figure, by reading it.

    Of several figures, the first one counts. Of equal values, the older checkpoint is better. Takes a folder
    and returns what :func:`newest_checkpoint` does; None also if no checkpoint has a value.
    """
    infos, skipped = _read_all(checkpoint_paths(folder))
    monitored = [item for info in reversed(infos) if info.values for item in info.directions.items()]
    return _first_intact(_best_first(infos, *monitored[0]) if monitored else (), skipped)


def checkpoint_paths(folder: Path) -> list[Path]:
    """Return the checkpoints in a run's folder or a folder of checkpoints, or the one checkpoint."""
    parent = folder / CHECKPOINTS if (folder / CHECKPOINTS).is_dir() else folder
    return [folder] if (folder / MANIFEST).exists() else sorted(parent.glob("epoch-*"))


def _first_intact(
    infos: Iterable[CheckpointInfo], skipped: list[str]
) -> tuple[CheckpointInfo | None, list[str]]:
    for info in infos:
        problems = verify(info)
        if not problems:
            return info, skipped
        skipped.append(f"{info.path}: {'; '.join(limited(problems, _SHOWN))}")
    return None, skipped


def _best_first(infos: Iterable[CheckpointInfo], figure: str, direction: str) -> list[CheckpointInfo]:
    """Return the checkpoints with a value of a figure, the best first; the order of equal ones stays."""
    sign = 1.0 if direction == "min" else -1.0
    measured = [info for info in infos if figure in info.values]
    return sorted(measured, key=lambda info: sign * info.values[figure])


class CheckpointStore:
    """A folder of checkpoints to which one run at a time writes.

    It keeps the `keep_last` newest checkpoints, and for each monitored figure the `keep_best` best ones.
    """

    def __init__(self, folder: Path, keep_last: int, keep_best: int) -> None:
        self.folder = folder
        self._keep_last, self._keep_best = keep_last, keep_best
        self._checkpoints: list[CheckpointInfo] = []  # the intact ones
        self._run = 1

    def begin_run(self) -> None:
        """Find and verify the checkpoints of earlier runs; what this run writes counts as newer."""
        earlier = list_checkpoints(self.folder)
        self._checkpoints = [info for info in earlier if not verify(info)]
        self._run = 1 + max((info.run for info in earlier), default=0)

    def write(self, name: str, fill: Callable[[Path], None], facts: Mapping[str, Any]) -> Path:
        """Write a checkpoint; raises what :func:`write_checkpoint` raises."""
        info = write_checkpoint(self.folder, name, fill, {**facts, "run": self._run})
        self._checkpoints = [*(each for each in self._checkpoints if each.path != info.path), info]
        return info.path

    def delete_old(self, directions: Mapping[str, str]) -> None:
        """Delete the checkpoints that need not be kept; to be called after a checkpoint was written.

        Damaged ones neither count nor are deleted. `directions` are the monitored figures, whose values
        decide which checkpoints are the best, each with "min" or "max".
        """
        for info in to_delete(self._checkpoints, self._keep_last, self._keep_best, directions):
            if info.path.exists():
                remove_checkpoint(info.path)
            self._checkpoints.remove(info)

    def latest_step(self) -> int:
        """Return the greatest step of the intact checkpoints; 0 if there are none."""
        return max((info.step for info in self._checkpoints), default=0)


def to_delete(
    checkpoints: Iterable[CheckpointInfo], keep_last: int, keep_best: int, directions: Mapping[str, str]
) -> list[CheckpointInfo]:
    """Return the checkpoints that are neither among the last nor among the best, the oldest first.

    `directions` are the monitored figures, each with "min" or "max"; each has its own best checkpoints. The
    same checkpoint may be among the last and among the best of several figures. Of checkpoints with equal
    values, the older is better. A checkpoint without a value is never among the best.
    """
    ordered = sorted(checkpoints, key=lambda info: info.order)
    keep = {info.path for info in ordered[max(0, len(ordered) - keep_last) :]}
    for figure, direction in directions.items():
        keep |= {info.path for info in _best_first(ordered, figure, direction)[:keep_best]}
    return [info for info in ordered if info.path not in keep]


def _read_all(folders: Iterable[Path]) -> tuple[list[CheckpointInfo], list[str]]:
    """Return the checkpoints with a valid manifest, the newest last, and a line for each other one."""
    infos, skipped = [], []
    for path in folders:
        try:
            infos.append(read_info(path))
        except ValueError as error:
            skipped.append(f"{path}: {error}")
    return sorted(infos, key=lambda info: info.order), skipped


def _encode(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of a manifest, with a hash of the rest, so that any changed byte is detected."""
    plain = json.dumps(content, allow_nan=False, indent=1)
    digest = hashlib.sha256(plain.encode()).hexdigest()
    return (json.dumps({**content, "sha256": digest}, indent=1) + "\n").encode()
