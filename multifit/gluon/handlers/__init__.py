"""The event handlers that need MXNet's operators, one per file."""

from __future__ import annotations

from .gradient_noise import GradientNoise
from .label_smoothing import LabelSmoothing
from .mixup import MixUp
from .skip_non_finite import SkipNonFinite
from .weight_averaging import WeightAveraging

__all__ = ["GradientNoise", "LabelSmoothing", "MixUp", "SkipNonFinite", "WeightAveraging"]
