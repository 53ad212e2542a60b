"""The declarations: what a net's outputs, labels, losses, metrics and trainers are, by name."""

from .parts import LabelSpec, LossSpec, MetricSpec, TrainerSpec
from .task import TaskSpec

__all__ = ["LabelSpec", "LossSpec", "MetricSpec", "TaskSpec", "TrainerSpec"]
