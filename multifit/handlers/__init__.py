"""The event handlers that do not need MXNet, one family per file."""

from .checkpoint import CheckpointHandler
from .defaults import acting_on, validating, with_defaults
from .early_stopping import EarlyStoppingHandler
from .freeze import Freeze
from .interrupt import InterruptHandler
from .log_to import LogTo
from .metric import MetricHandler
from .plateau import PlateauHandler
from .printing import LogFile, LoggingHandler, ProgressBar
from .prune import Prune
from .stopping import StoppingHandler
from .tensorboard import TensorBoardHandler
from .validation import ValidationHandler

__all__ = [
    "CheckpointHandler",
    "EarlyStoppingHandler",
    "Freeze",
    "InterruptHandler",
    "LogFile",
    "LogTo",
    "LoggingHandler",
    "MetricHandler",
    "PlateauHandler",
    "ProgressBar",
    "Prune",
    "StoppingHandler",
    "TensorBoardHandler",
    "ValidationHandler",
    "acting_on",
    "validating",
    "with_defaults",
]
