"""MultiEstimator: the loop, the same for every net."""

from .multi import MultiEstimator

__all__ = ["MultiEstimator"]
