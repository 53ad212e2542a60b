"""multifit: train Gluon nets with several outputs, losses and trainers through one short loop."""

from . import losses, metrics
from .errors import DataError, Problem, SpecError, TrainerError, UserCodeError
from .estimator import MultiEstimator
from .events import MOMENTS, HandlerError, Priority
from .handlers import (
    EarlyStoppingHandler,
    LoggingHandler,
    MetricHandler,
    ProgressBar,
    StoppingHandler,
    ValidationHandler,
)
from .history import History
from .plan import Plan
from .spec import LabelSpec, LossSpec, MetricSpec, TaskSpec, TrainerSpec
from .state import RunState
from .triggers import Every

__version__ = "0.1.0"

__all__ = [
    "MOMENTS",
    "DataError",
    "EarlyStoppingHandler",
    "Every",
    "HandlerError",
    "History",
    "LabelSpec",
    "LoggingHandler",
    "LossSpec",
    "MetricHandler",
    "MetricSpec",
    "MultiEstimator",
    "Plan",
    "Priority",
    "Problem",
    "ProgressBar",
    "RunState",
    "SpecError",
    "StoppingHandler",
    "TaskSpec",
    "TrainerError",
    "TrainerSpec",
    "UserCodeError",
    "ValidationHandler",
    "losses",
    "metrics",
]
