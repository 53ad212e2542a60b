"""A folder of checkpoints that one run writes to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

from .finding import Entry, entries
from .hidden import is_hidden
from .retention import superfluous
from .wholeness import problems
from .writing import remove, write_checkpoint

__all__ = ["Shelf"]


class Shelf:
    """Numbers the checkpoints that are written to a folder, and removes those that are superfluous.

    Parameters
    ----------
    folder : Path
        The folder; it is made when the first checkpoint is written.
    keep_last, keep_best : int
        How many to keep; see `superfluous`.
    """

    def __init__(self, folder: Path, keep_last: int, keep_best: int) -> None:
        self.folder = folder
        self._keep_last, self._keep_best = keep_last, keep_best
        # Which checkpoints are whole. Each is read once: an earlier run's when it is first seen.
        self._whole: dict[tuple[Path, int], bool] = {}

    def write(self, name: str, fill: Callable[[Path], None], facts: Mapping[str, Any]) -> Path:
        """Write a checkpoint, as `write_checkpoint` does, with the fact ``serial``.

        Raises
        ------
        OSError
            It could not be written, or is not whole when read back.
        ValueError
            See `write_checkpoint`.
        """
        serial = 1 + max((entry.serial for entry in entries(self.folder)), default=0)
        path = write_checkpoint(self.folder, name, fill, {**facts, "serial": serial})
        wrong = problems(path)
        if wrong:
            raise OSError(f"read back, it was not what had been written: {'; '.join(wrong)}")
        self._whole[path, serial] = True
        return path

    def trim(self, monitor: str | None, mode: str | None) -> None:
        """Remove what is superfluous; to be called after a checkpoint was written.

        Only whole checkpoints count, and only they are removed: one that is damaged, or to which somebody
        added a file, stays where it is.

        Parameters
        ----------
        monitor : str, optional
            The figure whose values tell the best ones.
        mode : {"min", "max"}, optional
            Which values of it are better.

        Raises
        ------
        OSError
            One could not be removed.
        """
        found = [
            entry if entry.monitor == monitor else entry._replace(value=None)
            for entry in entries(self.folder)
            if not is_hidden(entry.path.name) and self._is_whole(entry)
        ]
        for entry in superfluous(found, self._keep_last, self._keep_best, mode):
            try:
                remove(entry.path)
            except ValueError:  # somebody put something into it since it was read
                self._whole[entry.path, entry.serial] = False

    def furthest(self) -> int:
        """Return the greatest step of a checkpoint that is there, 0 if there is none."""
        return max((entry.step for entry in entries(self.folder)), default=0)

    def _is_whole(self, entry: Entry) -> bool:
        known = entry.path, entry.serial
        if known not in self._whole:
            self._whole[known] = not problems(entry.path)
        return self._whole[known]
