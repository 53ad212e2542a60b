"""One metric of one stage: computed on the device if possible, else updated batch by batch."""

from __future__ import annotations

import math
from enum import Enum
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from ...errors import Problem, SpecError, counted
from ...spec.names import Ref, listed
from ...spec.terms import MetricTerm
from ..user_code import user_code
from .base import DeviceMetric
from .catalogue import device_metric, direction, figure_names
from .host_update import HostUpdate
from .joining import Joining
from .present import PresentMatches

SAMPLES = "samples"  # the name of the number of samples among the sums


class Place(Enum):
    """Where a metric is computed."""

    UNDECIDED = "undecided"  # until the first batch
    DEVICE = "device"  # as sums within the step's graph
    HOST = "host"  # by its own update, which waits for the engine


class StageMetric:
    """A metric in one stage: where it is computed, and its figures.

    `measured` says whether the metric object holds something measured since the last reset. `width` is the
    width of its sums on the device, which a fit's first batch decides. `is_exact` says whether an update on
    the host gets the arrays of all processes that evaluate together.
    """

    def __init__(self, term: MetricTerm, metric: Any) -> None:
        self.term, self.metric = term, metric
        self._host = HostUpdate(metric)
        self.takes_preds = self._host.takes_preds
        self.place = Place.UNDECIDED
        self.width: int | None = None
        self.measured = self.is_exact = False
        self._names: list[str] | None = None

    def bind(self, arrays: Mapping[Ref, Any], size: int, one_device: bool) -> DeviceMetric | None:
        """Return the device metric for one device's outputs and slots; None if this metric runs on the host.

        `size` is the device's number of samples. Some metrics need ``one_device`` with the whole batch.
        """
        device = device_metric(self.metric)
        if device is None or (device.per_batch and not one_device):
            return None
        width = 1  # of sums without the number of labels
        if self.term.present:
            if not device.counts_labels:
                return None
            device, width = PresentMatches(device), PresentMatches.width
        outputs = [arrays[ref].shape for ref in self.term.outputs] + [(1,)] * len(self.term.losses)
        labels = [arrays[ref].shape for ref in (*self.term.labels, *self.term.present)]
        # Sums without the number of labels (which is then the number of samples) cannot be added to sums with
        # it, which graphs for other shapes may have. If batches may lack slots of the metric, nothing counts
        # the samples of those that have them.
        samples = None if self.term.optional or self.width not in (None, width) else size
        if not device.bind(labels, outputs, samples) or self.width not in (None, device.width):
            return None
        self.width = device.width
        return device

    def move_to(self, place: Place, sums: Callable[[], Mapping[str, np.ndarray]]) -> None:
        """Compute the metric at `place` from now on; sums on the device are loaded into the metric object.

        `sums` returns the stage's sums by name; it is called only if the metric leaves the device.
        """
        if self.place is Place.DEVICE and place is Place.HOST:
            self.load_sums(sums())
        self.place = place

    def load_sums(self, sums: Mapping[str, np.ndarray]) -> None:
        """Load the sums on the devices into the metric object, if any batch had the slots that it takes."""
        device, totals = device_metric(self.metric), sums.get(self.term.where)
        if totals is None:
            return
        assert device is not None
        try:
            with user_code(lambda: self.term.where):
                device.load(np.append(totals, sums[SAMPLES]) if len(totals) == 1 else totals)
        except SpecError as error:
            raise SpecError(f"{self.term.where}: {error.problems[0]}") from None
        self.measured = True

    def update(
        self, arrays: Sequence[Mapping[Ref, Any]], parts: Sequence[Mapping[str, Any]], joining: Joining
    ) -> None:
        """Update the metric object on the host; see :meth:`HostUpdate.__call__`."""
        self.measured |= self._host(self.term, arrays, parts, joining)

    def reset(self) -> None:
        """Discard everything measured."""
        with user_code(lambda: f"{self.term.where}.reset"):
            self.metric.reset()
        self.measured = False

    def restart(self) -> None:
        """Discard everything measured, and decide again where to compute it: shapes may have changed."""
        self.reset()
        self.place, self._names, self.width = Place.UNDECIDED, None, None
        self.is_exact = False

    @property
    def direction(self) -> str | None:
        """Whether it is better "min" or "max"; None if unknown."""
        return self.term.spec.mode or direction(self.metric)

    @property
    def names(self) -> list[str]:
        """The names of its figures; some metrics know them only once they have measured something."""
        if self.measured or self._names is None:
            self._names = list(self.figures())
        return self._names

    @names.setter
    def names(self, names: Sequence[str]) -> None:
        self._names = list(names)

    def figures(self) -> dict[str, float]:
        """Return its figures by name; NaN if nothing was measured since the last reset."""
        if self._names is not None and not self.measured:
            return dict.fromkeys(self._names, math.nan)
        names, values = self._read()
        if len(names) == 1 and not listed(self.term.spec.names):
            return {self.term.key: values[0]}
        return {f"{self.term.key}.{name}": value for name, value in zip(names, values)}

    def problem(self) -> Problem | None:
        """Return the problem with the figures' names, if there is one; needs a measured batch."""
        declared = listed(self.term.spec.names)
        names, values = self._read()
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            message = f'{type(self.metric).__name__} returns two figures named "{repeated}"'
            return Problem("spec", f"{self.term.where}: {message}; give names=[...], one for each")
        if len(names) == len(values):
            return None
        hint = f"names= gives {len(declared)}" if declared else "give names=[...], one for each"
        returned = f"{type(self.metric).__name__} returns {counted(len(values), 'figure')}"
        return Problem("spec", f"{self.term.where}: {returned}; {hint}")

    def _read(self) -> tuple[list[str], list[float]]:
        declared = list(listed(self.term.spec.names)) or figure_names(self.metric) or []
        if not self.measured:
            return declared or [self.term.key], [math.nan] * max(len(declared), 1)
        with user_code(lambda: f"{self.term.where}.get"):
            names, values = _names_and_values(self.metric.get())
        return declared or names or ([self.term.key] if len(values) == 1 else []), values


def _names_and_values(result: Any) -> tuple[list[str], list[float]]:
    """Split the result of a metric's ``get()``: a name and a value, lists of these, or values without names.

    gluoncv's SegmentationMetric returns values without names.
    """
    names, values = result if isinstance(result, (list, tuple)) and len(result) == 2 else ((), result)
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        names, values = (), result
    return list(names), [float(value) for value in np.atleast_1d(values)]
