"""Sums over a pass, on the device."""

from collections.abc import Sequence
from typing import Any

import torch

from ...gluon.data.batch import Batch
from ...gluon.execution.loss_graph import LossGraph
from ...gluon.execution.loss_weights import BatchLossScale
from ...gluon.metrics.labels import NEVER, LabelColumns
from ...gluon.metrics.stage_figures import StageFigures
from .tensors import to_array, to_tensor


class Accumulator:
    """Adds up tensors of one shape on their device, without waiting for them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._total: torch.Tensor | None = None

    def add(self, values: torch.Tensor) -> None:
        """Add a tensor, which may change afterwards."""
        self._total = values.clone() if self._total is None else self._total.add_(values)

    def read(self) -> Any:
        """Return the sum in NumPy, 0 if nothing was added; this waits for the device."""
        return 0.0 if self._total is None else self._total.cpu().numpy().copy()

    def state(self) -> list[Any]:
        """Return the sum as NDArrays, for a checkpoint."""
        return [] if self._total is None else [to_array(self._total)]

    def load(self, state: Sequence[Any]) -> None:
        """Restore what :meth:`state` returned, of either engine."""
        self._total = None
        for array in state:
            self.add(to_tensor(array, self._device))


class StageSums:
    """Sums a stage's losses and metrics in float64; adding does not wait for the device."""

    def __init__(self, figures: StageFigures) -> None:
        self._figures = figures
        self.clear()

    def clear(self) -> None:
        """Discard everything."""
        self._totals: dict[Any, torch.Tensor] = {}
        self._weighted: dict[str, torch.Tensor] = {}
        self._labels: dict[Any, tuple[LabelColumns, torch.Tensor]] = {}

    def add(
        self, losses: LossGraph, statistics: torch.Tensor | None, scale: BatchLossScale, batch: Batch
    ) -> None:
        """Add a batch: the statistics that its graph computed, its samples and its normalizers."""
        sums = self._figures.sums
        if statistics is not None:
            statistics = _without_empty(losses, statistics, scale)
            total = self._totals.get(losses.layout)
            self._totals[losses.layout] = statistics.clone() if total is None else total.add_(statistics)
            self._add_weighted(losses, statistics, scale)
            if losses.label_columns is not None:
                self._add_labels(losses.layout, losses.label_columns, statistics, sums.batches + 1)
        sums.count(batch.samples, scale.own)

    def fetch(self) -> None:
        """Add everything to the stage's figures, and begin again at 0; this waits for the device."""
        for layout, total in self._totals.items():
            self._figures.sums.add(layout, to_array(total))
        for key, weighted in self._weighted.items():
            self._figures.sums.weighted[key].add(weighted.item())
        self._figures.labels.merge(
            [
                (columns.keys, to_array(torch.stack([self._totals[layout][columns.slice], best.double()])))
                for layout, (columns, best) in self._labels.items()
            ]
        )
        self.clear()

    def _add_weighted(self, losses: LossGraph, statistics: torch.Tensor, scale: BatchLossScale) -> None:
        for term in losses.terms:
            if term.key in self._figures.sums.weighted:
                part = statistics[losses.slices[term.where].start + term.minimized]
                before = self._weighted.get(term.key, 0.0)
                self._weighted[term.key] = before + part * scale.weights[term.key]

    def _add_labels(self, layout: Any, columns: LabelColumns, statistics: torch.Tensor, batch: int) -> None:
        """Keep, for each rule, NEVER minus the first batch with a label that broke it."""
        best = (statistics[columns.slice] != 0) * (NEVER - batch)
        if layout in self._labels:
            best = torch.maximum(self._labels[layout][1], best)
        self._labels[layout] = columns, best


def _without_empty(losses: LossGraph, statistics: torch.Tensor, scale: BatchLossScale) -> torch.Tensor:
    """Return statistics in which the losses of terms with a normalizer of 0 are 0."""
    empty = [term for term in losses.terms if not (term.counts_samples or scale.norms[term.key])]
    if empty:
        statistics = statistics.clone()
        for term in empty:
            statistics[losses.slices[term.where]] = 0
    return statistics
