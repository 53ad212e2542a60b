"""What is worth telling once: defaults that were used, data that was cast."""

from __future__ import annotations

import logging
import sys

__all__ = ["Notices", "get_logger"]


class Notices(list[str]):
    """Notices in the order in which they came up, each logged when it is new."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger

    def __call__(self, text: str) -> None:
        """Tell `text`, unless it was told before."""
        if text not in self:
            self.append(text)
            self._logger.info(text)


def get_logger() -> logging.Logger:
    """Return the logger "multifit"; where nobody configured logging, it writes to the standard output."""
    logger = logging.getLogger("multifit")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    if not logger.hasHandlers():  # a beginner wants to see what happens
        logger.addHandler(logging.StreamHandler(sys.stdout))
        logger.propagate = False  # MXNet's schedulers log at the root, which makes a handler there
    return logger
