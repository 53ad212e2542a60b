"""The event handlers, one family per file."""

from .checkpoint import CheckpointHandler
from .defaults import acting_on, validating, with_defaults
from .early_stopping import EarlyStoppingHandler
from .freeze import Freeze
from .gradient_noise import GradientNoise
from .interrupt import InterruptHandler
from .log_to import LogTo
from .metric import MetricHandler
from .non_finite import SkipNonFinite, TerminateOnNaN
from .plateau import PlateauHandler
from .printing import LogFile, LoggingHandler, ProgressBar
from .prune import Prune
from .stopping import StoppingHandler
from .tensorboard import TensorBoardHandler
from .validation import ValidationHandler
from .weight_averaging import WeightAveraging

__all__ = [
    "CheckpointHandler",
    "EarlyStoppingHandler",
    "Freeze",
    "GradientNoise",
    "InterruptHandler",
    "LogFile",
    "LogTo",
    "LoggingHandler",
    "MetricHandler",
    "PlateauHandler",
    "ProgressBar",
    "Prune",
    "SkipNonFinite",
    "StoppingHandler",
    "TensorBoardHandler",
    "TerminateOnNaN",
    "ValidationHandler",
    "WeightAveraging",
    "acting_on",
    "validating",
    "with_defaults",
]
