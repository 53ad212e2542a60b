"""Operators on sequences of different lengths, time along axis 0 or 1."""

from __future__ import annotations

from typing import Literal, Optional

import torch

from ..attributes import Tensor


def sequence_mask(
    x: Tensor,
    length: Tensor | None = None,
    *,
    use_sequence_length: bool = False,
    value: float = 0.0,
    axis: int = 0,
) -> Tensor:
    """Put a value in place of the elements behind each sequence's end."""
    if length is None or not use_sequence_length:
        return x
    steps = torch.arange(x.shape[axis], device=x.device)
    is_behind = steps.unsqueeze(1 - axis) >= length.long().unsqueeze(axis)
    return x.masked_fill(is_behind.reshape(*is_behind.shape, *[1] * (x.ndim - 2)), value)


def sequence_reverse(
    x: Tensor,
    length: Tensor | None = None,
    *,
    use_sequence_length: bool = False,
    axis: Literal[0] = 0,
) -> Tensor:
    """Reverse each sequence, and leave what is behind its end in place."""
    if length is None or not use_sequence_length:
        return x.flip(0)
    steps, length = torch.arange(x.shape[0], device=x.device).unsqueeze(1), length.long()
    index = torch.where(steps < length, length - 1 - steps, steps)
    return x.gather(0, index.reshape(*index.shape, *[1] * (x.ndim - 2)).expand(x.shape))


def sequence_last(
    x: Tensor, length: Optional[Tensor] = None, *, use_sequence_length: bool = False, axis: int = 0
) -> Tensor:
    """Return each sequence's last element."""
    x = x.transpose(0, axis)
    if length is None or not use_sequence_length:
        return x[-1]
    return x[length.long() - 1, torch.arange(x.shape[1], device=x.device)]


OPERATORS = {
    "SequenceMask": sequence_mask,
    "SequenceReverse": sequence_reverse,
    "SequenceLast": sequence_last,
}
