"""MultiEstimator: the loop, the same for every net."""

from .log_once import get_logger
from .multi import MultiEstimator

__all__ = ["MultiEstimator", "get_logger"]
