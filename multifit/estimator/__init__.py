"""MultiEstimator: the loop, the same for every net."""

from .multi import MultiEstimator
from .notices import get_logger

__all__ = ["MultiEstimator", "get_logger"]
