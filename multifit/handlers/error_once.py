"""Log an error that a run survives once, not at every attempt."""

from __future__ import annotations

import logging

__all__ = ["ErrorOnce"]


class ErrorOnce:
    """Remembers the last error of something that is attempted repeatedly."""

    def __init__(self) -> None:
        self._last: tuple[type[Exception], str] | None = None

    def report(self, logger: logging.Logger, what: str, error: Exception) -> None:
        """Log that `what` failed, unless the last attempt failed in the same way.

        The error's path is left out of the message: it differs from attempt to attempt.
        """
        reason = getattr(error, "strerror", None) or str(error).rpartition(": ")[2]
        if (type(error), reason) != self._last:
            self._last = type(error), reason
            logger.error("%s: %s; the training goes on, and files written before stay", what, reason)

    def over(self, logger: logging.Logger, what: str) -> None:
        """Log `what` as a warning if the last attempt failed; call it when an attempt succeeds."""
        if self._last is not None:
            self._last = None
            logger.warning("%s", what)
