"""Refuse learning rates of 0 for optimizers that divide by the rate, and would turn parameters into NaN."""

from __future__ import annotations

from typing import Sequence

import numpy as np

from ...errors import TrainerError, quoted
from ..compat import mx

DIVIDING = (mx.optimizer.Ftrl, mx.optimizer.FTML)


def refuse_next_rates(trainer: str, optimizer: mx.optimizer.Optimizer) -> None:
    """Raise TrainerError if the next update of all parameters would divide by a rate of 0."""
    if isinstance(optimizer, DIVIDING):
        indices = [i for i, parameter in optimizer.param_dict.items() if parameter.grad_req != "null"]
        refuse_rates(trainer, optimizer, indices, _next_rates(optimizer, indices))


def refuse_rates(
    trainer: str, optimizer: mx.optimizer.Optimizer, indices: Sequence[int], rates: Sequence[float]
) -> None:
    """Raise TrainerError if an optimizer would divide by 0, with these rates for the parameters."""
    if not isinstance(optimizer, DIVIDING):
        return
    zero = [optimizer.param_dict[index].name for index, rate in zip(indices, rates) if not np.float32(rate)]
    if not zero:
        return
    whose, way_out = "0", "let its schedule stay above 0, or use another optimizer"
    if len(zero) < len(rates):
        whose = f"0 for {quoted(zero)}"
        way_out = "give these an lr_mult above 0, or list them in frozen="
    kind = type(optimizer).__name__
    raise TrainerError(
        f'trainers["{trainer}"]: {kind} divides by the learning rate, which is {whose}; {way_out}'
    )


def _next_rates(optimizer: mx.optimizer.Optimizer, indices: Sequence[int]) -> list[float]:
    """Return the rates of the next update, without counting it."""
    twin = object.__new__(type(optimizer))
    vars(twin).update(vars(optimizer), _index_update_count=dict(optimizer._index_update_count))
    twin._update_count(indices)
    return list(twin._get_lrs(indices))
