"""Keep what the log says in a file."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..events import EstimatorProtocol

__all__ = ["LogFile"]


class LogFile:
    """Writes to `path` what ``estimator.logger`` says in a fit, each record with its date and time.

    The file is opened before any handler hears of the fit and closed after the last one did, so that it has
    what others say when a training begins and ends. It is appended to: a resumed run goes on in the same
    file. Progress bars are not in it. Where it cannot be opened or written to, one warning says so, and the
    training goes on without.

    Parameters
    ----------
    path : str or path
        The file, UTF-8; its folder is made where there is none.
    """

    priority = -math.inf

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @contextmanager
    def around_fit(self, estimator: EstimatorProtocol) -> Iterator[None]:
        """Open the file, and close it when the fit is over, however it ends."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = _File(self.path, estimator.logger)
        except OSError as error:
            _warn(estimator.logger, self.path, error)
            yield
            return
        estimator.logger.addHandler(file)
        try:
            yield
        finally:
            file.end()


class _File(logging.FileHandler):
    """Appends to a file until that fails."""

    def __init__(self, path: Path, logger: logging.Logger) -> None:
        super().__init__(path, mode="a", encoding="utf-8")
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
        self._logger = logger

    def handleError(self, record: logging.LogRecord) -> None:
        """Give up where the file cannot be written to: logging would print a traceback for each record."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):  # a message that does not fit its arguments: not the file's fault
            super().handleError(record)
            return
        self.end()
        _warn(self._logger, Path(self.baseFilename), error)

    def end(self) -> None:
        """Take the file from the logger and close it."""
        self._logger.removeHandler(self)
        with suppress(OSError):  # what waits in its buffer does not fit on the disk either, as was told
            self.close()


def _warn(logger: logging.Logger, path: Path, error: OSError) -> None:
    logger.warning("cannot write the log to %s: %s; the training goes on without", path, error.strerror)
