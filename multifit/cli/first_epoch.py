"""What a run does to its folder when its first epoch begins; until then, an earlier run's files stay."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Callable

from ..protocols import MultiEstimator
from .earlier import set_aside
from .results import LOG


class AtFirstEpoch:
    """Writes a run's description when its first epoch begins, so that it is there if the run is killed.

    A run that begins anew first sets aside an earlier run in its folder. This must be made before the run
    logs anything.
    """

    first_rank_only = True

    def __init__(self, folder: Path, write: Callable[[], object]) -> None:
        self._folder, self._write = folder, write
        log = folder / LOG
        self._logged = log.stat().st_size if log.exists() else 0

    def epoch_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Write the description; if the disk refuses, train anyway, and leave the error to the end."""
        earlier = None if estimator.state.step else set_aside(self._folder, self._logged)
        if earlier is not None:
            estimator.logger.info("the earlier run in this folder is kept in %s", earlier)
        with suppress(OSError):
            self._write()
