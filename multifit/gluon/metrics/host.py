"""Metrics that are computed on the host."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from ...engines import scikit
from ...engines.metric_figures import function_of, is_torchmetrics
from ...engines.prediction import sample_axis
from ...spec.checks import describe
from ...spec.checks.values import partly_missing_problem
from ...spec.parsing import label_of, presence
from ...spec.plan import function_name
from ...spec.terms import LABELS, OUTPUTS, MetricTerm, Ref
from ...utils.errors import SpecError, raise_problems
from ...utils.protocols import Array
from ...utils.signatures import arity_problem, signature_of
from ...utils.text import quoted, shown, suggest
from ..compat import mx
from ..data.arrays import new_array
from .catalogue import READING, parts_of, updates_as, value_axis
from .classification import UNCLEAR, BinaryAccuracy, read_classes
from .labels import count_in_part


def copy_metric(metric: mx.metric.EvalMetric) -> mx.metric.EvalMetric:
    """Copy a metric and reset the copy.

    Attributes that cannot be copied, such as the lock of gluoncv's SegmentationMetric, are shared;
    ``copy.deepcopy`` alone would raise for them. Blocks and Parameters are shared too, because a metric that
    uses a net must use that same net.
    """
    twin = _copy(metric, {})
    twin.reset()
    return twin


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    """Copy what can be copied; copy metrics, also those in lists, attribute by attribute.

    `memo` is the memo of ``copy.deepcopy``: an object that the original holds twice is copied once.
    """
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, (mx.gluon.Block, mx.gluon.Parameter, mx.gluon.ParameterDict)):
        return value
    if isinstance(value, mx.metric.EvalMetric):
        twin = memo[id(value)] = object.__new__(type(value))
        twin.__dict__.update({name: _copy(part, memo) for name, part in vars(value).items()})
        return twin
    if type(value) in (list, tuple):
        return type(value)(_copy(part, memo) for part in value)
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # objects that cannot be copied raise all kinds of errors
        return value


# names in MXNet's registry that are of no use without an instance
_UNNAMED = {"caffe", "torch", "custom", "custommetric", "composite", "compositeevalmetric"}


def as_metric(term: MetricTerm) -> Any:
    """Return the term's EvalMetric: a new one for a name, and for a function one that calls it.

    Raises SpecError if there is no metric of that name, or if it has options that must be given.
    """
    function, metric = function_of(term), term.spec.metric
    if function is not None:
        return _FunctionMetric(function, term.key, term.spec.sample_weight is not None)
    if is_torchmetrics(metric):
        return import_module("multifit.torch.metrics").TorchMetric(metric, term.where)
    if isinstance(metric, str):
        return _named_metric(term.where, metric)
    if not hasattr(metric, "get"):
        raise SpecError(f"{term.where}: {function_name(metric)} has no get(), as metrics of Gluon nets have")
    return metric


def _named_metric(where: str, name: str) -> Any:
    classes = {**mx.registry.get_registry(mx.metric.EvalMetric), "binary_accuracy": BinaryAccuracy}
    classes.update(cross_entropy=mx.metric.CrossEntropy, pearson=mx.metric.PearsonCorrelation)
    if top := re.fullmatch(r"top_([1-9]\d*)(_accuracy)?", name.lower()):
        return mx.metric.TopKAccuracy(top_k=int(top[1])) if int(top[1]) > 1 else mx.metric.Accuracy()
    cls = classes.get(name.lower())
    if cls is None:
        valid = sorted(set(classes) - _UNNAMED)
        raise SpecError(
            f"{where}: there is no metric {shown(name)}{suggest(name, valid)}; valid are {quoted(valid)}"
        )
    try:
        return cls()
    except (AssertionError, TypeError) as error:
        instance = f"mx.metric.{cls.__name__}(...)"
        raise SpecError(f"{where}: {shown(name)} needs options ({error}); give {instance}") from error


def is_function(metric: Any) -> bool:
    """Whether :func:`as_metric` made a metric from a function."""
    return isinstance(metric, _FunctionMetric)


class _FunctionMetric(mx.metric.EvalMetric):
    """The value of ``function(labels, outputs)``, which gets the NumPy arrays of a whole pass.

    If it is `weighted`, the last of the labels is its argument `sample_weight`.
    """

    def __init__(self, function: Any, name: str, weighted: bool = False) -> None:
        super().__init__(name)
        self.function = function
        self._compute = scikit.WholePassFunction(function, f'metrics["{name}"]', weighted)
        self.mode = self._compute.mode

    def update(self, labels: Sequence[Any], preds: Sequence[Any]) -> None:
        """Call the function with one array each, or with lists of arrays if several are named."""
        self.sum_metric, self.num_inst = self._compute(labels, preds), 1


Groups = tuple[list[Any], list[Any]]
"""The labels and the outputs that a metric with the stock signature takes: arrays of any kind."""


class Measured(NamedTuple):
    """What metrics are updated with for a batch: outputs and slots, and what the losses returned, per device.

    `sizes` are the devices' numbers of samples along `axis`. Devices without samples are left out.
    `by_value` says whether the arrays hold the present values of labels and their outputs, each pair a number
    of its own, instead of samples; a pair of which a device has none is then left out on it.
    """

    arrays: Sequence[Mapping[Ref, Any]]
    parts: Sequence[Mapping[str, Any]]
    sizes: Sequence[int]
    axis: int = 0
    by_value: bool = False

    def present(self, term: MetricTerm, metric: Any) -> Measured:
        """Return the same with what is present for a metric: see :func:`present_arrays`."""
        if not term.present:
            return self
        axis = value_axis(term, metric, self.arrays[0])
        chosen = [present_arrays(term, axis, *device) for device in zip(self.arrays, self.parts)]
        with_samples = [device for device in chosen if device is not None]
        arrays, parts = [device[0] for device in with_samples], [device[1] for device in with_samples]
        sizes = [len(device[term.present[0]]) for device in arrays]
        return Measured(arrays, parts, sizes, by_value=axis is not None)

    def joined(self, devices: Sequence[Groups]) -> Sequence[Groups]:
        """Return the arrays of all devices as those of one, on the first device, without waiting for them.

        If the sample axis of any array is not clear, or if something is no NDArray, returns the devices'
        arrays as they are; so it does with the present values of labels.
        """
        columns = [*zip(*(labels + outputs for labels, outputs in devices))]
        axes = [self._axis(pieces) for pieces in columns]
        if self.by_value or len(devices) == 1 or None in axes:
            return devices
        context, labels = columns[0][0].context, len(devices[0][0])
        moved = [[piece.as_in_context(context) for piece in pieces] for pieces in columns]
        whole = [mx.nd.concat(*pieces, dim=axis) for pieces, axis in zip(moved, axes)]
        return [(whole[:labels], whole[labels:])]

    def _axis(self, pieces: Sequence[Any]) -> int | None:
        are_arrays = all(isinstance(piece, mx.nd.NDArray) for piece in pieces)
        return sample_axis(pieces, self.sizes, self.axis) if are_arrays else None


def present_arrays(
    term: MetricTerm, axis: int | None, arrays: Mapping[Ref, Array], others: Mapping[str, Array]
) -> tuple[dict[Ref, Array], dict[str, Array]] | None:
    """Return one device's arrays with what is present for a metric; None if nothing is.

    `others` are what the losses returned, and `axis` is what :func:`value_axis` returns. If it is given, the
    metric gets, of each label and its output, the values that are present; both are left out if there are
    none. Otherwise it gets the samples that have all its labels; raises DataError if a sample has only a part
    of a label. This waits for the device.
    """
    if axis is not None:
        values = dict(arrays)
        for output, label in zip(term.outputs, term.labels):
            mask = Ref(LABELS, presence(label.name))
            if mask in term.present:
                pair = _values(values.pop(output), values.pop(label), arrays[mask], axis)
                values.update(zip((output, label), pair))
        return (values, dict(others)) if any(ref in values for ref in term.labels) else None
    for ref in term.present:
        if count := count_in_part(arrays[ref]):
            raise_problems([partly_missing_problem(term.where, label_of(ref).name, "", count)])
    masks = [arrays[ref].asnumpy() for ref in term.present]
    rows = np.all([mask.reshape(len(mask), -1).all(axis=1) for mask in masks], axis=0)
    if not rows.any():
        return None
    index = new_array(np.flatnonzero(rows), arrays[term.present[0]].context, "int32")

    def chosen(array: Any) -> Any:
        is_per_sample = array is not None and array.shape[:1] == (len(rows),)
        return mx.nd.take(array, index, axis=0) if is_per_sample else array

    return {ref: chosen(a) for ref, a in arrays.items()}, {name: chosen(a) for name, a in others.items()}


def _values(output: Array, label: Array, present: Array, axis: int) -> list[Array]:
    """Return the values of an output and its label that are present, as samples; nothing if there are none.

    The classes stay along `axis`.
    """
    rows = np.flatnonzero(present.asnumpy())
    if not rows.size:
        return []
    index = new_array(rows, label.context, "int32")
    if label.size > len(label):
        if output.size == label.size:
            output = output.reshape((-1,))
        else:
            classes = output.shape[axis]
            output = mx.nd.moveaxis(output, axis, -1).reshape((-1, *(1,) * (axis - 1), classes))
        label = label.reshape((-1, *(1,) * (axis - 1)))
    return [mx.nd.take(array, index, axis=0) for array in (output, label)]


def groups(metric: Any, term: MetricTerm, measured: Measured) -> list[Groups]:
    """Return what a metric with the stock signature takes, device by device."""
    if term.spec.transform is None:
        return _columns(term, measured)
    devices = _transformed(metric, term, measured)
    return [(list(_as_list(labels)), list(_as_list(outputs))) for labels, outputs in devices]


def as_array(value: Any) -> Array:
    """Return an array or a number, of which transform may return any kind, as an NDArray."""
    return value if isinstance(value, mx.nd.NDArray) else new_array(np.atleast_1d(value))


def as_numpy(value: Any) -> np.ndarray:
    """Return an array or a number as a NumPy array of its own; waits for the device."""
    return value.asnumpy() if isinstance(value, mx.nd.NDArray) else np.array(value, ndmin=1)


def update(metric: Any, term: MetricTerm, measured: Measured) -> None:
    """Call the `update` of a metric with a batch, with the arguments that it takes.

    A metric of another signature gets a list with each device's array for each argument, unless transform
    returns lists of arrays.
    """
    if takes_preds(metric):
        for labels, outputs in measured.joined(groups(metric, term, measured)):
            update_metric(term.where, metric, labels, outputs)
        return
    if term.spec.transform is not None:
        devices = _transformed(metric, term, measured)
    elif term.spec.arguments is not None:
        devices = [[arrays[ref] for ref in term.args] for arrays in measured.arrays]
    else:
        devices = [outputs + labels for labels, outputs in _columns(term, measured)]
    if any(_is_list_of_arrays(value) for values in devices for value in values):
        for values in devices:
            metric.update(*values)
    else:
        metric.update(*(list(pieces) for pieces in zip(*devices)))


def update_metric(where: str, metric: Any, labels: Any, *arguments: Any) -> None:
    """Call the `update` of a metric; labels of the outputs' shape are read by :func:`read_classes`.

    Raises SpecError if it is not clear what these hold.
    """
    for part in parts_of(metric):
        read = labels
        if updates_as(part, *READING):
            axis = getattr(part, "axis", 1)
            read = [read_classes(label, output, axis) for label, output in zip(labels, *arguments)]
            if any(label is None for label in read):
                raise SpecError(f"{where}: for {describe.arrays(labels)}, {UNCLEAR}")
        part.update(read, *arguments)


def takes_preds(metric: Any) -> bool:
    """Whether `update` has the stock signature ``(labels, preds)``."""
    signature = signature_of(metric.update)
    return signature is None or list(signature.parameters)[1:2] == ["preds"]


def _columns(term: MetricTerm, measured: Measured) -> list[Groups]:
    """Return the labels and the outputs (then losses) that a metric takes, device by device."""
    return [
        (
            [arrays[ref] for ref in term.args if ref.space != OUTPUTS and ref in arrays],
            [arrays[ref] for ref in term.args if ref.space == OUTPUTS and ref in arrays]
            + [parts[name] for name in term.losses],
        )
        for arrays, parts in zip(measured.arrays, measured.parts)
    ]


def _transformed(metric: Any, term: MetricTerm, measured: Measured) -> list[Sequence[Any]]:
    """Return what transform returns, device by device: a value for each argument of `update`."""
    transform: Any = term.spec.transform
    per_device = [
        _as_list(transform(*(arrays[ref] for ref in term.args), *(parts[name] for name in term.losses)))
        for arrays, parts in zip(measured.arrays, measured.parts)
    ]
    returned = [f"value {number}" for number, _ in enumerate(per_device[0], 1)]
    fix = "let transform return its arguments, in their order"
    problem = arity_problem(f"{term.where}.update", metric.update, returned, fix=fix)
    if problem:
        raise SpecError(problem)
    return per_device


def _as_list(values: Any) -> Sequence[Any]:
    return values if isinstance(values, (list, tuple)) else [values]


def _is_list_of_arrays(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(hasattr(item, "shape") for item in value)
