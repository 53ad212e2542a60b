"""Choose the devices of a run, and parse them from text such as ``gpu:0,1``."""

import re
from collections.abc import Iterable
from typing import Any

from ...utils.protocols import Context, Parameter
from ...utils.text import MAX_SHOWN, counted, shown
from ..compat import mx

CPU: Context = mx.cpu(0)
VALID = (
    "write a number of CPUs (2), cpu, cpu:<number>, gpu, gpu:<id>[,<id>...] (gpu:0,1), "
    "or for PyTorch cuda:<id>"
)


def resolve_context(context: object, parameters: Iterable[Parameter]) -> list[Context]:
    """Return the contexts to run on; by default those of the parameters, else the first GPU, else the CPU.

    Raises ValueError if an item is not a context, is given twice, or does not exist on this machine, or if a
    text cannot be parsed.
    """
    if context is None:
        return placed_on(parameters) or [mx.gpu(0) if mx.context.num_gpus() else mx.cpu(0)]
    if isinstance(context, str):
        context = parse_devices(context)
    contexts: list[Any] = list(context) if isinstance(context, (list, tuple)) else [context]
    messages = [f"{shown(c)} is not a context" for c in contexts if not isinstance(c, mx.Context)]
    valid = [c for c in contexts if isinstance(c, mx.Context)]
    gpus = mx.context.num_gpus()
    missing = [c for c in valid if c.device_type == "gpu" and c.device_id >= gpus]
    messages += [f"{c} does not exist: this machine has {counted(gpus, 'GPU')}" for c in missing]
    messages += [f"{c} is given twice" for i, c in enumerate(valid) if c in valid[:i]]
    if messages or not contexts:
        raise ValueError(
            f"context: {'; '.join(messages[:MAX_SHOWN]) or 'the list is empty'}; "
            "give an mx.Context or a list of different ones, such as mx.cpu(0) or [mx.gpu(0), mx.gpu(1)]"
        )
    return contexts


def can_compute(context: object) -> bool:
    """Whether MXNet can compute on the GPUs among the contexts.

    MXNet's builds hold machine code for some GPUs only; on any other GPU, every operator fails. Raises
    ValueError if a text cannot be parsed.
    """
    context = parse_devices(context) if isinstance(context, str) else context
    contexts = list(context) if isinstance(context, (list, tuple)) else [context]
    try:
        for gpu in [c for c in contexts if getattr(c, "device_type", None) == "gpu"]:
            mx.nd.ones((1,), ctx=gpu).wait_to_read()
    except mx.base.MXNetError:
        return False
    return True


def placed_on(parameters: Iterable[Parameter]) -> list[Context]:
    """Return the contexts of the first initialised parameter; empty if there is none."""
    for parameter in parameters:
        try:
            return list(parameter.list_ctx())
        except RuntimeError:  # not initialised
            continue
    return []


def parse_devices(text: str) -> list[Context]:
    """Parse a list of devices.

    ``"2"`` and ``"cpu:2"`` are two CPU contexts, ``"cpu"`` is one; ``"gpu"`` is the first GPU, and
    ``"gpu:0,1"`` are the GPUs with those numbers, which may not exist. Raises ValueError if the text cannot
    be parsed, names no device, or names one twice.
    """
    match = re.fullmatch(r"(?:(cpu|gpu):?)?(\d+(?:,\d+)*)?", text.strip().lower())
    if not text.strip() or match is None:
        raise ValueError(f"cannot read the devices {text!r}: {VALID}")
    device_type, listed = match.groups()
    numbers = [int(number) for number in listed.split(",")] if listed else []
    if device_type == "gpu":
        if len(set(numbers)) != len(numbers):
            raise ValueError(f"{text!r} names a GPU twice: {VALID}")
        return [mx.gpu(number) for number in numbers or [0]]
    if numbers == [0] or len(numbers) > 1:
        raise ValueError(f"{text!r} is not a number of CPUs: {VALID}")
    return [mx.cpu(number) for number in range(numbers[0] if numbers else 1)]
