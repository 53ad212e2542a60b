"""The event handlers that do not need MXNet, one family per file."""

from .checkpoint import CheckpointHandler
from .defaults import acting_on, validating, with_defaults
from .early_stopping import EarlyStoppingHandler
from .interrupt import InterruptHandler
from .metric import MetricHandler
from .plateau import PlateauHandler
from .printing import LogFile, LoggingHandler, ProgressBar
from .stopping import StoppingHandler
from .tensorboard import TensorBoardHandler
from .validation import ValidationHandler

__all__ = [
    "CheckpointHandler",
    "EarlyStoppingHandler",
    "InterruptHandler",
    "LogFile",
    "LoggingHandler",
    "MetricHandler",
    "PlateauHandler",
    "ProgressBar",
    "StoppingHandler",
    "TensorBoardHandler",
    "ValidationHandler",
    "acting_on",
    "validating",
    "with_defaults",
]
