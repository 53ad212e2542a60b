"""The checkpoints of a run's folder: list them, find the newest intact one, write and delete them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable

from ..errors import limited
from .atomic import remove_checkpoint, write_checkpoint
from .integrity import verify
from .manifest import MANIFEST, CheckpointInfo, NewerFormatError, read_info
from .temp_dirs import is_temp_name

CHECKPOINTS = "checkpoints"
_NAME = re.compile(r"epoch-(\d+)-step-(\d+)")
_SHOWN = 3  # problems shown per checkpoint


class CheckpointStore:
    """A folder of checkpoints to which one run writes; :func:`to_delete` says which checkpoints it keeps."""

    def __init__(self, folder: Path, keep_last: int, keep_best: int) -> None:
        self.folder = folder
        self._keep_last, self._keep_best = keep_last, keep_best
        # Each checkpoint is verified once: those of an earlier run when they are first seen.
        self._intact: dict[tuple[Path, int], bool] = {}

    def write(self, name: str, fill: Callable[[Path], None], facts: Mapping[str, Any]) -> Path:
        """Write a checkpoint with the next ``serial`` number, and verify it; raises OSError if damaged."""
        serial = 1 + max((info.serial for info in list_checkpoints(self.folder)), default=0)
        path = write_checkpoint(self.folder, name, fill, {**facts, "serial": serial})
        problems = verify(path)
        if problems:
            raise OSError(f"the checkpoint is damaged when read back: {'; '.join(problems)}")
        self._intact[path, serial] = True
        return path

    def delete_old(self, directions: Mapping[str, str]) -> None:
        """Delete the checkpoints that need not be kept; to be called after a checkpoint was written.

        Only intact checkpoints count, and only they are deleted, unless somebody added a file: then the
        whole checkpoint stays. `directions` are the monitored figures, whose values decide which checkpoints
        are the best, each with "min" or "max".
        """
        candidates = [
            info
            for info in list_checkpoints(self.folder)
            if not is_temp_name(info.path.name) and self._is_intact(info)
        ]
        for info in to_delete(candidates, self._keep_last, self._keep_best, directions):
            with suppress(ValueError):  # somebody added a file
                remove_checkpoint(info.path)

    def latest_step(self, after: int = 0) -> int:
        """Return the greatest step of the intact checkpoints after a step; 0 if there are none."""
        later = (info for info in list_checkpoints(self.folder) if info.step > after)
        return max((info.step for info in later if self._is_intact(info)), default=0)

    def _is_intact(self, info: CheckpointInfo) -> bool:
        key = info.path, info.serial
        if key not in self._intact:
            self._intact[key] = not verify(info.path)
        return self._intact[key]


def checkpoints_folder(folder: Path) -> Path:
    """Return the folder of a run's checkpoints: its ``checkpoints``, or `folder` itself if so named."""
    return folder if folder.name == CHECKPOINTS else folder / CHECKPOINTS


def list_checkpoints(parent: Path) -> list[CheckpointInfo]:
    """Return the checkpoints in a folder by their manifests, the newest last.

    Checkpoints without a valid manifest are left out. Those that a killed process left under a temporary name
    are included.
    """
    infos = []
    for path in _candidates(parent):
        try:
            infos.append(read_info(path))
        except ValueError:
            continue
    return sorted(infos, key=lambda info: info.order)


def newest_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """Find the newest intact checkpoint.

    Parameters
    ----------
    folder : Path
        A run's folder (which contains ``checkpoints``), a folder of checkpoints, or one checkpoint.

    Returns
    -------
    checkpoint : Path or None
        None if there is none.
    skipped : list of str
        One line for each damaged checkpoint that is or may be newer, with the reason. A checkpoint without a
        readable manifest, or with that of another checkpoint, may be newer.

    Raises
    ------
    NewerFormatError
        A newer multifit wrote to the folder: an older checkpoint would not continue that run.
    """
    if not folder.is_dir():
        return None, [f"{folder} is not a folder"]
    if (folder / CHECKPOINTS).is_dir():
        folder = folder / CHECKPOINTS
    infos: list[CheckpointInfo] = []
    skipped: list[str] = []
    for path in [folder] if _is_checkpoint(folder) else _candidates(folder):
        try:
            info = read_info(path)
        except NewerFormatError as error:
            raise NewerFormatError(f"{path}: {error}") from None
        except ValueError as error:
            skipped += _skipped(path, [str(error)])
            continue
        # with another name in its manifest, the checkpoint is not where it belongs
        problems = verify(path) if info.name != path.name else []
        skipped += _skipped(path, problems)
        infos += [] if problems else [info]
    for info in sorted(infos, key=lambda info: info.order, reverse=True):
        problems = verify(info.path)
        if not problems:
            return info.path, skipped
        skipped += _skipped(info.path, problems)
    return None, skipped


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
        sign = 1.0 if direction == "min" else -1.0
        measured = [(sign * info.values[figure], info.path) for info in ordered if figure in info.values]
        keep |= {path for _, path in sorted(measured, key=lambda pair: pair[0])[:keep_best]}
    return [info for info in ordered if info.path not in keep]


def _candidates(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return sorted(path for path in parent.iterdir() if _is_checkpoint(path))


def _is_checkpoint(path: Path) -> bool:
    return path.is_dir() and (_NAME.fullmatch(path.name) is not None or (path / MANIFEST).exists())


def _skipped(path: Path, problems: list[str]) -> list[str]:
    if not problems or is_temp_name(path.name):  # no more than what a killed process left
        return []
    return [f"{path}: {'; '.join(limited(problems, _SHOWN))}"]
