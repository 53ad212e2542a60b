"""A failure that a run survives, told once and not at every attempt."""

from __future__ import annotations

import logging

__all__ = ["Trouble"]


class Trouble:
    """What went wrong the last time, until it goes well again."""

    def __init__(self) -> None:
        self._failure: tuple[type[Exception], str] | None = None

    def report(self, logger: logging.Logger, what: str, error: Exception) -> None:
        """Log a failure, unless the attempt before failed in the same way.

        Parameters
        ----------
        logger : Logger
            Where to.
        what : str
            What could not be done.
        error : Exception
            Why; its reason is told without the path, which is another one at each attempt.
        """
        reason = getattr(error, "strerror", None) or str(error).rpartition(": ")[2]
        if (type(error), reason) != self._failure:
            self._failure = type(error), reason
            logger.error("%s: %s; the training goes on, and what was written stays", what, reason)

    def over(self, logger: logging.Logger, what: str) -> None:
        """Log that it goes well again, if it did not before."""
        if self._failure is not None:
            self._failure = None
            logger.warning("%s", what)
