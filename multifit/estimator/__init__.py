"""MultiEstimator and the collaborators that it owns."""

from .estimator import MultiEstimator
from .log_once import get_logger

__all__ = ["MultiEstimator", "get_logger"]
