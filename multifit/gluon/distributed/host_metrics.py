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
        self._agreed: set[frozenset[str]] = set()

    def due(self, absent: frozenset[str]) -> list[StageMetric]:
        """Return the metrics to update with a batch that lacks slots; if exact, all ranks have the same.

        The ranks agree on a loader's first batch: those of other loaders say nothing of its metrics.
        """
        on_device_so_far: list[StageMetric] = []
        if self._gathers and absent not in self._agreed:
            self._agreed.add(absent)
            on_device_so_far = self._agree()
        due = [metric for metric in self._figures.on_host if metric not in on_device_so_far]
        return [metric for metric in due if metric.term.optional.isdisjoint(absent)]

    def _agree(self) -> list[StageMetric]:
        """Let the metrics on the host be exact; return those that the device has counted the batch for.

        One that has measured some batches on each rank by itself goes on like that.
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

        Only what exact metrics take; nothing is exchanged if none is.
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
    """Compute a metric on the host if any rank does, or if the ranks' sums of it are not of one width.

    Shapes, which decide about it, may differ between ranks.
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
