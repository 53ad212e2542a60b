"""All operators, by the names that MXNet writes into a symbol whichever alias was called."""

from __future__ import annotations

from typing import Any, Callable, Mapping

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
    scalar,
    sequence,
    shapes,
    slicing,
    unary,
)

_FAMILIES: tuple[Mapping[str, Any], ...] = (
    unary.OPERATORS,
    binary.OPERATORS,
    scalar.OPERATORS,
    reductions.OPERATORS,
    ordering.OPERATORS,
    shapes.OPERATORS,
    slicing.OPERATORS,
    creation.OPERATORS,
    indexing.OPERATORS,
    sequence.OPERATORS,
    products.OPERATORS,
    convolution.OPERATORS,
    pooling.OPERATORS,
    resizing.OPERATORS,
    normalization.OPERATORS,
    activation.OPERATORS,
    recurrent.OPERATORS,
    losses.OPERATORS,
    attention.OPERATORS,
    boxes.OPERATORS,
    regions.OPERATORS,
    random.OPERATORS,
)

OPERATORS: dict[str, Callable[..., Any]] = {
    name: function for family in _FAMILIES for name, function in family.items()
}
