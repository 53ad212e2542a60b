"""Devices: which ones a run uses, and how a batch is split over them."""

from __future__ import annotations

from typing import Any, Sequence

from ..compat import mx

__all__ = ["placed_on", "resolve_context", "shares"]


def resolve_context(context: Any, parameters: Sequence[Any]) -> list[Any]:
    """Return the list of contexts to run on.

    Parameters
    ----------
    context : Context, list of Context or None
        None: where the parameters live, else the first GPU, else the CPU.
    parameters : sequence of Parameter
        The net's parameters.

    Raises
    ------
    ValueError
        Something is no context, stands twice, or does not exist on this machine.
    """
    if context is None:
        return placed_on(parameters) or [mx.gpu(0) if mx.context.num_gpus() else mx.cpu(0)]
    contexts = list(context) if isinstance(context, (list, tuple)) else [context]
    wrong = [f"{c!r} is no context" for c in contexts if not isinstance(c, mx.Context)]
    gpus = mx.context.num_gpus()
    wrong += [
        f"{c} does not exist: this machine has {gpus} GPUs"
        for c in contexts
        if isinstance(c, mx.Context) and c.device_type == "gpu" and c.device_id >= gpus
    ]
    wrong += [f"{c} stands twice" for i, c in enumerate(contexts) if c in contexts[:i]]
    if wrong or not contexts:
        raise ValueError(
            f"context: {'; '.join(wrong) or 'the list is empty'}; "
            "give an mx.Context or a list of different ones, such as mx.cpu(0) or [mx.gpu(0), mx.gpu(1)]"
        )
    return contexts


def placed_on(parameters: Sequence[Any]) -> list[Any]:
    """Return the contexts on which the parameters were initialised, in order; empty where none was."""
    for parameter in parameters:
        try:
            return list(parameter.list_ctx())
        except RuntimeError:  # not initialised: the next one may be
            continue
    return []


def shares(samples: int, devices: int) -> list[int]:
    """Split a number of samples over devices as evenly as it goes; the first ones take the rest.

    >>> shares(7, 2)
    [4, 3]
    >>> shares(1, 2)
    [1, 0]
    """
    each, rest = divmod(samples, devices)
    return [each + (i < rest) for i in range(devices)]
