"""One metric of one stage: computed on the device if possible, else updated batch by batch."""

from __future__ import annotations

import math
from enum import Enum
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from ...errors import Problem, SpecError, counted
from ...signatures import arity_problem, positional
from ...spec.names import OUTPUTS, Ref, listed
from ...spec.terms import MetricTerm
from ..compat import mx
from ..user_code import user_code
from .base import DeviceMetric
from .catalogue import device_metric, direction, figure_names
from .function_metric import is_function
from .joining import Joining
from .present import PresentMatches, present_rows

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
        self.takes_preds, self._is_stock = _takes_preds(metric), _is_stock(metric)
        self.place = Place.UNDECIDED
        self.width: int | None = None
        self.measured = self.is_exact = False
        self._names: list[str] | None = None

    # ---- where it is computed ------------------------------------------------------------------------------

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
        with user_code(lambda: self.term.where):
            device.load(np.append(totals, sums[SAMPLES]) if len(totals) == 1 else totals)
        self.measured = True

    # ---- on the host ---------------------------------------------------------------------------------------

    def update(
        self, arrays: Sequence[Mapping[Ref, Any]], parts: Sequence[Mapping[str, Any]], joining: Joining
    ) -> None:
        """Update the metric object on the host; most metrics wait for the engine here.

        `arrays` are the outputs and slots, `parts` what the losses returned, both per device. Does nothing if
        no device had samples. `joining` joins the arrays of all devices.
        """
        if not arrays:
            return
        term = self.term
        if term.present:
            chosen = [present_rows(term.present, *device) for device in zip(arrays, parts)]
            with_samples = [device for device in chosen if device is not None]
            if not with_samples:
                return
            arrays, parts = zip(*with_samples)
            joining = Joining([len(device[term.present[0]]) for device in arrays], 0)
        columns = [[device[ref] for device in arrays] for ref in term.args]
        outputs = [c for ref, c in zip(term.args, columns) if ref.space == OUTPUTS]
        outputs += [[device[name] for device in parts] for name in term.losses]
        labels = [c for ref, c in zip(term.args, columns) if ref.space != OUTPUTS]
        with user_code(lambda: f"{term.where}.update", *((str(r), c[0]) for r, c in zip(term.args, columns))):
            if term.spec.transform is not None:
                losses = outputs[len(term.outputs) :]
                self._update_transformed(columns + losses if term.losses else columns, joining)
            elif not self.takes_preds:
                self.metric.update(*(columns if term.spec.arguments is not None else [*outputs, *labels]))
            elif is_function(self.metric):
                self.metric.update(*([joining(term.where, c) for c in each] for each in (labels, outputs)))
            elif self._is_stock:
                self.metric.update([a for column in labels for a in column], [a for c in outputs for a in c])
            else:
                for values in joining.whole_or_each([*labels, *outputs]):
                    self.metric.update(list(values[: len(labels)]), list(values[len(labels) :]))
        self.measured = True

    def _update_transformed(self, columns: Sequence[Sequence[Any]], joining: Joining) -> None:
        transform = self.term.spec.transform
        per_device = [_as_list(transform(*arrays)) for arrays in zip(*columns)]  # type: ignore[misc]
        returned = [f"value {number}" for number, _ in enumerate(per_device[0], 1)]
        fix = "let transform return its arguments, in their order"
        problem = arity_problem(f"{self.term.where}.update", self.metric.update, returned, fix=fix)
        if problem:
            raise SpecError(problem)
        arguments = [list(values) for values in zip(*per_device)]
        if is_function(self.metric):
            pieces = [zip(*map(_as_list, column)) for column in arguments]
            self.metric.update(*([joining(self.term.where, c) for c in each] for each in pieces))
        elif any(_is_list_of_arrays(value) for values in per_device for value in values):
            for values in per_device:  # such lists are whole arguments, as gluoncv's RPNAccMetric takes them
                self.metric.update(*values)
        elif self.takes_preds and not self._is_stock:
            for values in joining.whole_or_each(arguments):
                self.metric.update(*([value] for value in values))
        else:
            self.metric.update(*arguments)

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

    # ---- its figures ---------------------------------------------------------------------------------------

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


def _as_list(values: Any) -> Sequence[Any]:
    return values if isinstance(values, (list, tuple)) else [values]


def _is_list_of_arrays(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(hasattr(item, "shape") for item in value)


def _takes_preds(metric: Any) -> bool:
    """Whether `update` has the stock signature ``(labels, preds)``."""
    signature = positional(metric.update)
    return signature is None or (len(signature[0]) > 1 and signature[0][1] == "preds")


def _is_stock(metric: Any) -> bool:
    """Whether a metric is MXNet's own, which takes a list of the arrays of all devices."""
    if type(metric) is mx.metric.CompositeEvalMetric:
        return all(map(_is_stock, metric.metrics))
    return type(metric).__module__ == mx.metric.__name__


def _names_and_values(result: Any) -> tuple[list[str], list[float]]:
    """Split the result of a metric's ``get()``: a name and a value, lists of these, or values without names.

    gluoncv's SegmentationMetric returns values without names.
    """
    names, values = result if isinstance(result, (list, tuple)) and len(result) == 2 else ((), result)
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        names, values = (), result
    return list(names), [float(value) for value in np.atleast_1d(values)]
