"""Checks of the declarations against real data. They return problems and never raise."""

from .batches import batch_axis_problems, bind_slots, form_problems, is_masked, slot_problems
from .images import CHANNELS_FIRST, channel_doubts, channels_hint, has_channels_last
from .labels import (
    LENGTH,
    RESHAPED,
    WEIGHT,
    axis_problem,
    counted_labels_problem,
    elementwise_problem,
    label_problems,
    mask_kind,
    not_finite_problem,
    partly_missing_problem,
)
from .loaders import batch_count, is_array, is_endless, loader_problems, no_batch_problems, one_shot
from .outputs import at_path, bind_outputs

__all__ = [
    "CHANNELS_FIRST",
    "LENGTH",
    "RESHAPED",
    "WEIGHT",
    "at_path",
    "axis_problem",
    "batch_axis_problems",
    "batch_count",
    "bind_outputs",
    "bind_slots",
    "channel_doubts",
    "channels_hint",
    "counted_labels_problem",
    "elementwise_problem",
    "form_problems",
    "has_channels_last",
    "is_array",
    "is_endless",
    "is_masked",
    "label_problems",
    "loader_problems",
    "mask_kind",
    "no_batch_problems",
    "not_finite_problem",
    "one_shot",
    "partly_missing_problem",
    "slot_problems",
]
