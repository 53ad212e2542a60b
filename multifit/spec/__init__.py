"""Declarations: a net's outputs, labels, losses, metrics and trainers, by name."""

from .specs import LabelSpec, LossSpec, MetricSpec, TrainerSpec
from .task import TaskSpec
from .terms import Declarations

__all__ = ["Declarations", "LabelSpec", "LossSpec", "MetricSpec", "TaskSpec", "TrainerSpec"]
