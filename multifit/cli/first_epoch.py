"""What a run does to its folder when its first epoch begins; until then, an earlier run's files are kept."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Callable

from ..events import EstimatorProtocol
from .record import recorded_pictures
from .results import remove_results


class AtFirstEpoch:
    """Writes a run's description when its first epoch begins, so that it is there if the run is killed.

    A run that begins anew first removes the results and checkpoints of an earlier one in its folder.
    """

    first_rank_only = True

    def __init__(self, folder: Path, write: Callable[[], object]) -> None:
        self._folder, self._write = folder, write

    def epoch_begin(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Write it; if the disk refuses, train, and leave the error to the end."""
        pictures = None if estimator.state.step else recorded_pictures(self._folder)
        if pictures is not None:
            remove_results(self._folder, pictures)
            estimator.logger.info("the results and checkpoints of the earlier run in this folder are removed")
        with suppress(OSError):
            self._write()
