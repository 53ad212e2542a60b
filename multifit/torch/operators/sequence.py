"""Operators on sequences of different lengths, with time along axis 0 or 1."""

from __future__ import annotations

from typing import Literal, Optional

import torch

from ..attributes import Tensor


def sequence_mask(
    x: Tensor,
    length: Optional[Tensor] = None,
    *,
    use_sequence_length: bool = False,
    value: float = 0.0,
    axis: int = 0,
) -> Tensor:
    """Replace the elements after each sequence's end by a value."""
    if length is None or not use_sequence_length:
        return x
    steps = torch.arange(x.shape[axis], device=x.device)
    is_behind = steps.unsqueeze(1 - axis) >= length.long().unsqueeze(axis)
    return x.masked_fill(is_behind.reshape(*is_behind.shape, *[1] * (x.ndim - 2)), value)


def sequence_reverse(
    x: Tensor,
    length: Optional[Tensor] = None,
    *,
    use_sequence_length: bool = False,
    axis: Literal[0] = 0,
) -> Tensor:
    """Reverse each sequence, and leave the elements after its end in place."""
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


def ctc_loss(
    x: Tensor,
    label: Tensor,
    *lengths: Tensor,
    use_data_lengths: bool = False,
    use_label_lengths: bool = False,
    blank_label: Literal["first", "last"] = "first",
) -> Tensor:
    """Return minus the logarithm of each label's probability; 0 if the scores have too few steps for it.

    Without lengths, a label ends before its first 0 if the blank is the first class, else before its first
    -1.
    """
    steps, batch, classes = x.shape
    blank, end = (0, 0) if blank_label == "first" else (classes - 1, -1)
    lengths_of_labels = lengths[-1] if use_label_lengths else (label != end).cumprod(1).sum(1)
    lengths_of_data = lengths[0] if use_data_lengths else torch.full((batch,), steps, device=x.device)
    return torch.nn.functional.ctc_loss(
        x.log_softmax(-1),
        label.long(),
        lengths_of_data.long(),
        lengths_of_labels.long(),
        blank,
        reduction="none",
        zero_infinity=True,
    )


OPERATORS = {
    "CTCLoss": ctc_loss,
    "SequenceMask": sequence_mask,
    "SequenceReverse": sequence_reverse,
    "SequenceLast": sequence_last,
}
