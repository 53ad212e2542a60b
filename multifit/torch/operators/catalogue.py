"""All operators, by the names that MXNet writes into a symbol, whatever alias was called."""

from __future__ import annotations

from typing import Any, Callable

from . import (
    activation,
    attention,
    binary,
    boxes,
    convolution,
    creation,
    indexing,
    losses,
    normalization,
    ordering,
    pooling,
    products,
    random,
    recurrent,
    reductions,
    regions,
    resizing,
    sampling,
    scalar,
    sequence,
    shapes,
    slicing,
    unary,
)

_FAMILIES = (
    unary, binary, scalar, reductions, ordering, shapes, slicing, creation, indexing, sequence, products,
    convolution, pooling, resizing, sampling, normalization, activation, recurrent, losses, attention, boxes,
    regions, random,
)  # fmt: skip

OPERATORS: dict[str, Callable[..., Any]] = {
    name: function for family in _FAMILIES for name, function in family.OPERATORS.items()
}
WAITING = {"CTCLoss", "_contrib_box_nms"}  # they read numbers from the device; a CUDA graph cannot have them
