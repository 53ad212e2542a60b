"""Write the log of a fit to a file."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..arguments import PathLike, checked
from ..events import Handler
from ..protocols import MultiEstimator

FORMAT = "%(asctime)s %(levelname)-7s %(message)s"
FULL_TEXT = "full_text"  # an attribute of log records whose message was shortened to fit the terminal


class LogFile(Handler):
    """Writes what ``estimator.logger`` logs in a fit to a file, each record with its date and time.

    The file has all figures of an epoch, while the terminal shows only those that fit. It is opened before
    the handlers' ``train_begin`` and closed after their ``train_end``. Records are appended, so a resumed run
    continues the same file. Progress bars are not written. If the file cannot be opened or written, one
    warning is logged, and the training goes on without the file.

    Parameters
    ----------
    path : str or path
        The file, in UTF-8. Its folder is created if necessary.
    """

    priority = -math.inf
    first_rank_only = True  # where several processes train together

    @checked
    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)

    @contextmanager
    def around_fit(self, estimator: MultiEstimator) -> Iterator[None]:
        """Open the file, and close it when the fit is over or has failed."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = _FileHandler(self.path, estimator.logger)
        except OSError as error:
            _warn(estimator.logger, self.path, error)
            yield
            return
        estimator.logger.addHandler(file)
        try:
            yield
        finally:
            file.end()


class _FileHandler(logging.FileHandler):
    """Appends log records to a file until that fails."""

    def __init__(self, path: Path, logger: logging.Logger) -> None:
        super().__init__(path, mode="a", encoding="utf-8", errors="backslashreplace")
        self.setFormatter(_FullTextFormatter(FORMAT))
        self._logger = logger

    def handleError(self, record: logging.LogRecord) -> None:
        """Give up if the file cannot be written: logging would print a traceback for each record."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):  # the message does not fit its arguments
            super().handleError(record)
            return
        self.end()
        _warn(self._logger, Path(self.baseFilename), error)

    def end(self) -> None:
        """Remove the file from the logger and close it."""
        self._logger.removeHandler(self)
        with suppress(OSError):  # the buffer does not fit on the disk either, which was logged
            self.close()


class _FullTextFormatter(logging.Formatter):
    """Formats the full text of records that were shortened for the terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = getattr(record, FULL_TEXT, record.message)
        return super().formatMessage(record)


def _warn(logger: logging.Logger, path: Path, error: OSError) -> None:
    logger.warning("cannot write the log to %s: %s; training continues without it", path, error.strerror)
