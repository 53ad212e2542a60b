"""The event handlers that do not need MXNet, one per file."""

from __future__ import annotations

from .checkpoint import CheckpointHandler
from .defaults import acting_on, validation_data, with_defaults
from .early_stopping import EarlyStoppingHandler
from .interrupt import InterruptHandler
from .live_plot import LivePlot
from .log_file import LogFile
from .logging import LoggingHandler
from .metric import MetricHandler
from .plateau import PlateauHandler
from .progress import ProgressBar
from .stopping import StoppingHandler
from .tensorboard import TensorBoardHandler
from .validation import ValidationHandler

__all__ = [
    "CheckpointHandler",
    "EarlyStoppingHandler",
    "InterruptHandler",
    "LivePlot",
    "LogFile",
    "LoggingHandler",
    "MetricHandler",
    "PlateauHandler",
    "ProgressBar",
    "StoppingHandler",
    "TensorBoardHandler",
    "ValidationHandler",
    "acting_on",
    "validation_data",
    "with_defaults",
]
