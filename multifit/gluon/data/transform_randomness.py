"""Whether making a sample may draw random numbers: where it cannot, nobody needs to be seeded for it."""

from __future__ import annotations

from typing import Any

from ..compat import mx
from .array_batching import columns_of

__all__ = ["may_draw"]

_data, _nn, _vision = mx.gluon.data, mx.gluon.nn, mx.gluon.data.vision.transforms
FIXED = {_vision.Cast, _vision.CenterCrop, _vision.Normalize, _vision.Resize, _vision.ToTensor}
SEVERAL = {_vision.Compose, _nn.Sequential, _nn.HybridSequential}


def may_draw(dataset: Any) -> bool:
    """Whether a data set may draw random numbers when it is asked for a sample.

    Parameters
    ----------
    dataset : Dataset
        Any; only arrays, and Gluon's own transforms of them that are not random, are known not to draw.
    """
    while type(dataset) is _data.dataset._LazyTransformDataset:
        function = dataset._fn
        if type(function) is _data.dataset._TransformFirstClosure:
            function = function._fn
        if not _fixed(function):
            return True
        dataset = dataset._data
    return columns_of(dataset) is None


def _fixed(function: Any) -> bool:
    if type(function) in SEVERAL:
        return all(map(_fixed, function._children.values()))
    return type(function) in FIXED
