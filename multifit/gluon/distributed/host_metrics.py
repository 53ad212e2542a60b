"""Exchange the arrays that metrics outside of the graphs take, so that all ranks measure the whole batch."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from ...distributed import World
from ...spec.terms import MetricTerm
from ..data.arrays import new_array, to_numpy
from ..metrics.host_update import Measured
from ..metrics.joining import Joining


def gathered(world: World, terms: Sequence[MetricTerm], measured: Measured) -> Measured:
    """Return the outputs, slots and losses that some metrics take, of all ranks' devices, rank by rank."""
    refs = list(dict.fromkeys(ref for term in terms for ref in term.refs))
    losses = list(dict.fromkeys(name for term in terms for name in term.losses))
    local = [to_numpy(device[ref]) for device in measured.arrays for ref in refs]
    local += [to_numpy(device[name]) for device in measured.parts for name in losses]
    local.append(np.array(measured.joining.sizes, "int64"))
    sizes: list[int] = []
    arrays: list[dict[Any, Any]] = []
    parts: list[dict[Any, Any]] = []
    for *values, counts in world.gather_arrays(local):
        split = len(counts) * len(refs)
        sizes += counts.tolist()
        arrays += _by_device(len(counts), refs, values[:split])
        parts += _by_device(len(counts), losses, values[split:])
    return Measured(arrays, parts, Joining(sizes, measured.joining.axis))


def _by_device(devices: int, names: Sequence[Any], values: Sequence[np.ndarray]) -> list[dict[Any, Any]]:
    arrays = iter([new_array(value) for value in values])
    return [{name: next(arrays) for name in names} for _ in range(devices)]
