"""MXNet's operators as functions of torch tensors that compute the same, by the names in symbols."""

from collections.abc import Callable
from typing import Any

from . import detection, elementwise, indexing, layers, normalization, reductions, shapes

OPERATORS: dict[str, Callable[..., Any]] = {
    name: function
    for family in (elementwise, reductions, shapes, indexing, layers, normalization, detection)
    for name, function in family.OPERATORS.items()
}
WAITING = {"CTCLoss", "_contrib_box_nms"}  # they read numbers from the device; a CUDA graph cannot have them
