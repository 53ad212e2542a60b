"""MultiEstimator and the collaborators that it owns."""

from .estimator import MultiEstimator

__all__ = ["MultiEstimator"]
