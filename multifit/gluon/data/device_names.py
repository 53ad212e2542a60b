"""Parse devices given as text, as on the command line: ``2``, ``cpu:2``, ``gpu:0,1``."""

from __future__ import annotations

import re

from ...protocols import Context
from ..compat import mx

__all__ = ["parse_devices"]

VALID = "write a number of CPUs (2), cpu, cpu:<number>, gpu, or gpu:<id>[,<id>...] (gpu:0,1)"


def parse_devices(text: str) -> list[Context]:
    """Parse a list of devices.

    ``"2"`` and ``"cpu:2"`` are two CPU contexts, ``"cpu"`` is one; ``"gpu"`` is the first GPU, and
    ``"gpu:0,1"`` are the GPUs with those numbers, which may not exist. Raises ValueError if the text cannot
    be parsed, names no device, or names one twice.
    """
    match = re.fullmatch(r"(?:(cpu|gpu):?)?(\d+(?:,\d+)*)?", text.strip().lower())
    if not text.strip() or match is None:
        raise ValueError(f"cannot read the devices {text!r}: {VALID}")
    kind, listed = match.groups()
    numbers = [int(number) for number in listed.split(",")] if listed else []
    return _gpus(text, numbers) if kind == "gpu" else _cpus(text, numbers)


def _gpus(text: str, ids: list[int]) -> list[Context]:
    if len(set(ids)) != len(ids):
        raise ValueError(f"{text!r} names a GPU twice: {VALID}")
    return [mx.gpu(number) for number in ids or [0]]


def _cpus(text: str, counts: list[int]) -> list[Context]:
    if counts == [0] or len(counts) > 1:
        raise ValueError(f"{text!r} is not a number of CPUs: {VALID}")
    return [mx.cpu(number) for number in range(counts[0] if counts else 1)]
