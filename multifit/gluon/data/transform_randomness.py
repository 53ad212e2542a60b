"""Detect data sets whose samples use no random numbers, so that nothing needs to be seeded for them."""

from __future__ import annotations

from typing import Any

from ..compat import mx
from .array_batching import columns_of

__all__ = ["may_use_randomness"]

_data, _nn, _vision = mx.gluon.data, mx.gluon.nn, mx.gluon.data.vision.transforms
DETERMINISTIC = {_vision.Cast, _vision.CenterCrop, _vision.Normalize, _vision.Resize, _vision.ToTensor}
CONTAINERS = {_vision.Compose, _nn.Sequential, _nn.HybridSequential}


def may_use_randomness(dataset: Any) -> bool:
    """Whether a data set may draw random numbers for a sample.

    False only for arrays, and for transforms of them by Gluon's deterministic ones.
    """
    while type(dataset) is _data.dataset._LazyTransformDataset:
        function = dataset._fn
        if type(function) is _data.dataset._TransformFirstClosure:
            function = function._fn
        if not _is_deterministic(function):
            return True
        dataset = dataset._data
    return columns_of(dataset) is None


def _is_deterministic(function: Any) -> bool:
    if type(function) in CONTAINERS:
        return all(map(_is_deterministic, function._children.values()))
    return type(function) in DETERMINISTIC
