"""Messages that are logged once: defaults that were used, data that was cast."""

import logging
import sys

from ..utils.output import Output
from . import ALONE, World


class LogOnce(list[str]):
    """Logs each message once, and lists them in order."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self.logger = logger

    def __call__(self, message: str, level: int = logging.INFO) -> None:
        """Log a message, unless it was logged before."""
        if message not in self:
            self.append(message)
            self.logger.log(level, message)

    def warning(self, message: str) -> None:
        """Log a warning, unless it was logged before."""
        self(message, logging.WARNING)


def get_logger(world: World = ALONE) -> logging.Logger:
    """Return the logger "multifit"; it writes to the standard output if nobody configured logging.

    Ranks other than the first get a child of this logger, such as "multifit.rank-1", which logs only
    warnings; give it a handler and a level to log more. A broken output stream never stops a training.
    """
    logger = logging.getLogger("multifit")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler(Output(sys.stdout)))
        logger.propagate = False  # MXNet's schedulers log at the root, which creates a handler there
    if world.first:
        return logger
    rank_logger = logger.getChild(f"rank-{world.rank}")
    if rank_logger.level == logging.NOTSET:
        rank_logger.setLevel(logging.WARNING)
    return rank_logger
