"""Metrics that their own ``update`` computes: in evaluations, on what all ranks have."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from ...distributed import World
from ..data.arrays import to_numpy
from ..data.new_array import new_array
from ..metrics.joining import Joining
from ..metrics.stage_figures import StageFigures
from ..metrics.stage_metric import Place, StageMetric

Devices = list[dict[Any, Any]]
"""The arrays of each device, by name."""

Seen = tuple[Devices, Devices, Joining]
"""What a metric sees of a batch: outputs and slots, what the losses returned, how arrays are joined."""


class HostMetrics:
    """The metrics of one stage that are updated batch by batch.

    Such a metric may compute anything. If `exact`, it gets the arrays of all ranks' devices, in the order of
    ranks: what a single process would have given it. Else each rank's metric gets that rank's own.
    """

    def __init__(self, world: World, figures: StageFigures, exact: bool) -> None:
        self._world, self._figures = world, figures
        self._gathers = exact and not world.alone
        self._agreed = False

    def due(self) -> list[StageMetric]:
        """Return the metrics to update with a batch: the same on all ranks if they are exact."""
        if self._gathers and not self._agreed:
            own = [metric.term.key for metric in self._figures.on_host]
            keys = {key for rank in self._world.gather_json(own) for key in rank}
            for metric in self._figures.metrics:
                if metric.term.key in keys:
                    metric.move_to(Place.HOST, self._figures.sums.read)
                    metric.is_exact = True
            self._agreed = True
        return self._figures.on_host

    def gather(
        self, metrics: Sequence[StageMetric], arrays: Devices, parts: Devices, joining: Joining
    ) -> Seen:
        """Return the outputs and slots, and what the losses returned, of all ranks' devices.

        Only what exact metrics take; nothing is exchanged if none is.
        """
        exact = [metric.term for metric in metrics if metric.is_exact]
        if not exact:
            return arrays, parts, joining
        refs = list(dict.fromkeys(ref for term in exact for ref in term.refs))
        losses = list(dict.fromkeys(name for term in exact for name in term.losses))
        own = [to_numpy(device[ref]) for device in arrays for ref in refs]
        own += [to_numpy(device[name]) for device in parts for name in losses]
        own.append(np.array(joining.sizes, "int64"))
        sizes: list[int] = []
        every: Seen = [], [], Joining(sizes, joining.axis)
        for *values, counts in self._world.gather_arrays(own):
            sizes += counts.tolist()
            split = len(values) // (len(refs) + len(losses)) * len(refs)
            every[0].extend(_by_device(refs, values[:split]))
            every[1].extend(_by_device(losses, values[split:]) or [{}] * (split // len(refs)))
        return every


def _by_device(names: Sequence[Any], values: Sequence[np.ndarray]) -> list[dict[Any, Any]]:
    arrays = [new_array(value) for value in values]
    width = len(names)
    return [dict(zip(names, arrays[i : i + width])) for i in range(0, len(arrays), width or 1)]
