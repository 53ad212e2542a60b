"""The event handlers, one family per file."""

from .checkpoint import CheckpointHandler
from .defaults import acting_on, validating, with_defaults
from .early_stopping import EarlyStoppingHandler
from .freeze import Freeze
from .gradient_noise import GradientNoise
from .interpretation import Interpretation
from .label_changes import CutMix, LabelSmoothing, MixUp
from .log_to import LogTo
from .metric import MetricHandler
from .non_finite import SkipNonFinite, TerminateOnNaN
from .plateau import PlateauHandler
from .printing import LogFile, LoggingHandler, ProgressBar
from .prune import Prune
from .stopping import InterruptHandler, StoppingHandler
from .tensorboard import TensorBoardHandler
from .validation import ValidationHandler
from .weight_averaging import WeightAveraging

__all__ = [
    "CheckpointHandler",
    "CutMix",
    "EarlyStoppingHandler",
    "Freeze",
    "GradientNoise",
    "Interpretation",
    "InterruptHandler",
    "LabelSmoothing",
    "LogFile",
    "LogTo",
    "LoggingHandler",
    "MetricHandler",
    "MixUp",
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
