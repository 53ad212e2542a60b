"""The event handlers that come with multifit, one per file."""

from __future__ import annotations

from .defaults import validation_data, with_defaults
from .early_stopping import EarlyStoppingHandler
from .logging import LoggingHandler
from .metric import MetricHandler
from .progress import ProgressBar
from .stopping import StoppingHandler
from .validation import ValidationHandler

__all__ = [
    "EarlyStoppingHandler",
    "LoggingHandler",
    "MetricHandler",
    "ProgressBar",
    "StoppingHandler",
    "ValidationHandler",
    "validation_data",
    "with_defaults",
]
