"""F1 and MCC: two figures of the same four counts, over all samples ("micro") or batch by batch ("macro")."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import DeviceMetric, Pair, Shape, doubles

__all__ = ["DeviceF1", "DeviceMCC"]


class DeviceF1(DeviceMetric):
    """``mx.metric.F1``: the harmonic mean of precision and recall of class 1.

    The statistics are the true positives, the predicted positives, the labelled positives, the samples, and
    the labels of a third value, of which mxnet allows none.
    """

    width = 5

    def __init__(self, metric: Any) -> None:
        super().__init__(metric)
        self.per_batch = self.average == "macro"

    @property
    def average(self) -> str:
        """What the metric calls `average`: "macro", or anything else for micro."""
        return str(self.metric.average)

    @property
    def counts(self) -> Any:
        """Where the metric keeps its four counts."""
        return self.metric.metrics

    def micro(self) -> float:
        """Compute the figure from the metric's four counts."""
        return float(self.counts.fscore)

    def figure(self, F: Any, hits: Any, said: Any, true: Any, size: Any) -> Any:
        """Compute the figure of one batch, of shape (1,)."""
        # only where there is no hit can the denominator be 0, and then the figure is 0
        return 2 * hits / F.broadcast_maximum(said + true, F.ones_like(said))

    def fit(self, label: Shape, output: Shape) -> Pair | None:
        """See :meth:`DeviceMetric.fit`."""
        return self._pair if len(output) == 2 and label == output[:1] else None

    def _pair(self, F: Any, label: Any, output: Any) -> list[Any]:
        said = F.cast(F.argmax(output, axis=1), "int32") == 1
        label = F.cast(label, "int32")
        true = label == 1
        third = F.broadcast_not_equal(label, F.min(label)) * F.broadcast_not_equal(label, F.max(label))
        return doubles(F, F.sum(said * true), F.sum(said), F.sum(true), F.size_array(label), F.sum(third))

    def fold(self, F: Any, statistics: Any) -> Any:
        """See :meth:`DeviceMetric.fold`: (figure, 1, 0, 0, labels of a third value)."""
        if not self.per_batch:
            return statistics
        hits, said, true, size, third = [
            F.slice_axis(statistics, axis=0, begin=i, end=i + 1) for i in range(self.width)
        ]
        nothing = F.zeros_like(size)
        figure = self.figure(F, hits, said, true, size)
        return F.concat(figure, F.ones_like(size), nothing, nothing, third, dim=0)

    def load(self, totals: np.ndarray) -> None:
        """See :meth:`DeviceMetric.load`.

        Raises
        ------
        ValueError
            Labels of more than two values, with the metric's own words.
        """
        if totals[4] > 0:
            raise ValueError(f"{type(self.counts).__name__} currently only supports binary classification.")
        self.counts.reset_stats()
        if self.per_batch:
            super().load(totals)
            return
        hits, said, true, size = (int(round(value)) for value in totals[:4])
        counts = self.counts
        counts.true_positives = counts.global_true_positives = hits
        counts.false_positives = counts.global_false_positives = said - hits
        counts.false_negatives = counts.global_false_negatives = true - hits
        counts.true_negatives = counts.global_true_negatives = size - said - true + hits
        self._set(self.micro() * size, size)


class DeviceMCC(DeviceF1):
    """``mx.metric.MCC``: Matthews' correlation coefficient of two classes."""

    @property
    def average(self) -> str:
        """What the metric calls `average`: "macro", or anything else for micro."""
        return str(self.metric._average)

    @property
    def counts(self) -> Any:
        """Where the metric keeps its four counts."""
        return self.metric._metrics

    def micro(self) -> float:
        """Compute the figure from the metric's four counts."""
        return float(self.counts.matthewscc())

    def figure(self, F: Any, hits: Any, said: Any, true: Any, size: Any) -> Any:
        """Compute the figure of one batch, of shape (1,)."""
        # true positives * true negatives - false positives * false negatives, after the common terms go away
        above = hits * size - said * true
        one = F.ones_like(size)
        below = one
        for term in (said, true, size - true, size - said):  # mxnet leaves out the terms that are 0
            below = below * F.broadcast_maximum(term, one)
        return above / F.sqrt(below)
