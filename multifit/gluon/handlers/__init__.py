"""The event handlers that need MXNet, one per file."""

from .label_changes import CutMix, LabelSmoothing, MixUp

__all__ = [
    "CutMix",
    "LabelSmoothing",
    "MixUp",
]
