"""The event handlers that need MXNet, one per file."""

from .gradient_noise import GradientNoise
from .interpretation import Interpretation
from .label_changes import CutMix, LabelSmoothing, MixUp
from .non_finite import SkipNonFinite, TerminateOnNaN
from .weight_averaging import WeightAveraging

__all__ = [
    "CutMix",
    "GradientNoise",
    "Interpretation",
    "LabelSmoothing",
    "MixUp",
    "SkipNonFinite",
    "TerminateOnNaN",
    "WeightAveraging",
]
