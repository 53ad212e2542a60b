# What multifit exports. Type checkers read this file, and so does __init__.py, to find the home of each name.

from . import loggers, losses, metrics, schedules
from .array_batches import batches
from .cli.html_page import write_report
from .distributed import Sharded, World, connect
from .engines.batch import Shards
from .estimator import MultiEstimator
from .handlers import (
    CheckpointHandler,
    CutMix,
    EarlyStoppingHandler,
    Freeze,
    GradientNoise,
    Interpretation,
    InterruptHandler,
    LabelSmoothing,
    LogFile,
    LoggingHandler,
    LogTo,
    MetricHandler,
    MixUp,
    PlateauHandler,
    ProgressBar,
    Prune,
    SkipNonFinite,
    StoppingHandler,
    TensorBoardHandler,
    TerminateOnNaN,
    ValidationHandler,
    WeightAveraging,
)
from .handlers.delta_m import DeltaM
from .handlers.handler import Handler, Priority
from .handlers.history import History
from .handlers.state import RunState
from .handlers.triggers import Every
from .spec import LabelSpec, LossSpec, MetricSpec, TaskSpec, TrainerSpec
from .spec.plan import Plan
from .utils.errors import DataError, HandlerError, PeerError, Problem, SpecError, TrainerError
from .version import __version__ as __version__

__all__ = [
    "CheckpointHandler",
    "CutMix",
    "DataError",
    "DeltaM",
    "EarlyStoppingHandler",
    "Every",
    "Freeze",
    "GradientNoise",
    "Handler",
    "HandlerError",
    "History",
    "Interpretation",
    "InterruptHandler",
    "LabelSmoothing",
    "LabelSpec",
    "LogFile",
    "LogTo",
    "LoggingHandler",
    "LossSpec",
    "MetricHandler",
    "MetricSpec",
    "MixUp",
    "MultiEstimator",
    "PeerError",
    "Plan",
    "PlateauHandler",
    "Priority",
    "Problem",
    "ProgressBar",
    "Prune",
    "RunState",
    "Sharded",
    "Shards",
    "SkipNonFinite",
    "SpecError",
    "StoppingHandler",
    "TaskSpec",
    "TensorBoardHandler",
    "TerminateOnNaN",
    "TrainerError",
    "TrainerSpec",
    "ValidationHandler",
    "WeightAveraging",
    "World",
    "batches",
    "connect",
    "loggers",
    "losses",
    "metrics",
    "schedules",
    "write_report",
]
