"""Declarations: a net's outputs, labels, losses, metrics and trainers, by name."""

from .declarations import Declarations
from .specs import LabelSpec, LossSpec, MetricSpec, TrainerSpec
from .task import TaskSpec

__all__ = ["Declarations", "LabelSpec", "LossSpec", "MetricSpec", "TaskSpec", "TrainerSpec"]
