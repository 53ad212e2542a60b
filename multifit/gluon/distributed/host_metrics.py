"""Metrics that are computed by their own ``update``: in evaluations, on the arrays of all ranks."""

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
"""What a metric gets for a batch: outputs and slots, what the losses returned, how arrays are joined."""


class HostMetrics:
    """The metrics of one stage that are updated batch by batch.

    Such a metric may compute anything. If `exact`, it gets the arrays of all ranks' devices, in the order of
    the ranks, as it would in a single process. Otherwise each rank's metric gets the arrays of that rank.
    """

    def __init__(self, world: World, figures: StageFigures, exact: bool) -> None:
        self._world, self._figures = world, figures
        self._gathers = exact and not world.alone
        self._agreed: set[frozenset[str]] = set()

    def due(self, absent: frozenset[str]) -> list[StageMetric]:
        """Return the metrics to update with a batch; `absent` are the slots that it lacks.

        If exact, these are the same on all ranks. The ranks agree at the first batch of each loader: batches
        of other loaders do not show where its metrics are computed.
        """
        on_device_so_far: list[StageMetric] = []
        if self._gathers and absent not in self._agreed:
            self._agreed.add(absent)
            on_device_so_far = self._agree()
        due = [metric for metric in self._figures.on_host if metric not in on_device_so_far]
        return [metric for metric in due if metric.term.optional.isdisjoint(absent)]

    def _agree(self) -> list[StageMetric]:
        """Mark the metrics on the host as exact; return those that had this batch summed on the device.

        A metric that has already measured batches on each rank separately continues that way.
        """
        before = self._figures.on_device
        share_places(self._world, self._figures)
        on_host = self._figures.on_host
        begun = self._world.gather_json([metric.term.key for metric in on_host if metric.measured])
        for metric in on_host:
            metric.is_exact = metric.is_exact or not any(metric.term.key in rank for rank in begun)
        return [metric for metric in before if metric in on_host]

    def gather(
        self, metrics: Sequence[StageMetric], arrays: Devices, parts: Devices, joining: Joining
    ) -> Seen:
        """Return the outputs and slots, and what the losses returned, of all ranks' devices.

        Only arrays that exact metrics take are exchanged; if there are no such metrics, nothing is.
        """
        exact = [metric.term for metric in metrics if metric.is_exact]
        if not exact:
            return arrays, parts, joining
        refs = list(dict.fromkeys(ref for term in exact for ref in term.refs))
        losses = list(dict.fromkeys(name for term in exact for name in term.losses))
        local = [to_numpy(device[ref]) for device in arrays for ref in refs]
        local += [to_numpy(device[name]) for device in parts for name in losses]
        local.append(np.array(joining.sizes, "int64"))
        sizes: list[int] = []
        every: Seen = [], [], Joining(sizes, joining.axis)
        for *values, counts in self._world.gather_arrays(local):
            sizes += counts.tolist()
            split = len(values) // (len(refs) + len(losses)) * len(refs)
            every[0].extend(_by_device(refs, values[:split]))
            every[1].extend(_by_device(losses, values[split:]) or [{}] * (split // len(refs)))
        return every


def share_places(world: World, figures: StageFigures) -> None:
    """Compute a metric on the host if any rank does, or if the widths of the ranks' sums differ.

    Shapes decide where a metric is computed, and these may differ between ranks.
    """
    widths = {
        metric.term.key: 0 if metric.place is Place.HOST else metric.width
        for metric in figures.metrics
        if metric.place is not Place.UNDECIDED
    }
    ranks = world.gather_json(widths, "the metrics")
    for metric in figures.metrics:
        found_widths = {rank[metric.term.key] for rank in ranks if metric.term.key in rank}
        if 0 in found_widths or len(found_widths) > 1:
            metric.move_to(Place.HOST, figures.read_sums)


def _by_device(names: Sequence[Any], values: Sequence[np.ndarray]) -> list[dict[Any, Any]]:
    arrays = [new_array(value) for value in values]
    width = len(names)
    return [dict(zip(names, arrays[i : i + width])) for i in range(0, len(arrays), width or 1)]
