"""Metrics of MXNet as metrics on tensors; those that are not known are updated on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ...gluon.compat import mx
from ...gluon.metrics import host
from ...gluon.metrics.catalogue import BINARY, SEGMENTATION, class_name, counts_whole_pass, direction
from ...gluon.optim.parameters import named_parameters
from ...spec import TaskSpec
from ...spec.terms import MetricTerm, listed
from ...utils.errors import Problem, SpecError
from ..metrics import accuracy, binary_accuracy, named_metric, perplexity, top_k
from .module import GluonModule, to_array
from .parameters import Held

STOCK = {
    "Caffe": "loss", "CrossEntropy": "ce", "F1": "f1", "Loss": "loss", "MAE": "mae", "MCC": "mcc",
    "MSE": "mse", "NegativeLogLikelihood": "ce", "PCC": "pcc", "PearsonCorrelation": "pearsonr",
    "RMSE": "rmse", "Torch": "loss",
}  # fmt: skip
NATIVE: dict[str, Callable[[Any], Any]] = {
    **{
        f"mxnet.metric.{kind}": partial(lambda name, _: named_metric("", name), n)
        for kind, n in STOCK.items()
    },
    "mxnet.metric.Accuracy": lambda metric: accuracy(metric.axis),
    "mxnet.metric.Perplexity": lambda metric: perplexity(metric.ignore_label),
    "mxnet.metric.TopKAccuracy": lambda metric: top_k(metric.top_k),
    BINARY: lambda metric: binary_accuracy(metric.threshold),
}
"""By the full name of a class of MXNet's metrics: the metric on tensors."""


def converted_metrics(spec: TaskSpec, problems: list[Problem]) -> tuple[MetricTerm, ...]:
    """Return a spec's metrics as they are declared for a module; problems are added to the list."""
    terms: list[MetricTerm] = []
    used: set[int] = set()
    for term in spec.metric_terms:
        try:
            terms += _converted(term, used)
        except SpecError as error:
            problems += error.problems
    return tuple(terms)


def _converted(term: MetricTerm, used: set[int]) -> Iterator[MetricTerm]:
    """Yield the metrics of a term; one of the user's own that was `used` before is copied."""
    metric: Any = term.spec.metric
    if isinstance(metric, str) and not metric.startswith("sklearn."):
        metric = _named(term, metric)
    if not isinstance(metric, mx.metric.EvalMetric):
        yield replace(term, spec=replace(term.spec, transform=_transform(term)))
        return
    parts = _parts(metric, listed(term.spec.names))
    for name, part, native in parts:
        key, names = (term.key, term.spec.names) if name is None else (f"{term.key}.{name}", None)
        named = replace(term, key=key)
        spec = replace(term.spec, names=names, mode=term.spec.mode or direction(part))
        if native is not None:
            native = replace(native, counts_ignored=True)  # as MXNet does
            spec = replace(spec, metric=native, transform=_transform(term))
        elif counts_whole_pass(part):
            spec = replace(spec, metric=_WholePass(term.where, part), transform=_transform(term))
        else:
            part = host.copy_metric(part) if id(part) in used else part
            used.add(id(part))
            spec = replace(spec, metric=HostMetric(term, part), transform=None)
        yield replace(named, spec=spec)


def _named(term: MetricTerm, name: str) -> Any:
    """Return MXNet's metric of a name; the name if only the native metrics have it."""
    try:
        return host.as_metric(term)
    except SpecError:
        with suppress(SpecError):
            named_metric(term.where, name)
            return name
        raise


def _parts(metric: Any, names: Sequence[str]) -> list[tuple[str | None, Any, Any]]:
    """Return the metrics in a metric: the name of each, MXNet's metric, and that on tensors, if known."""
    if type(metric) is mx.metric.CompositeEvalMetric and counts_whole_pass(metric):
        found = [part for each in metric.metrics for part in _parts(each, ())]
        own = [name or part.name for name, part, _ in found] if len(found) > 1 else [None]
        return [(n, part, native) for n, (_, part, native) in zip(names or own, found)]
    known = metric.output_names is None and metric.label_names is None and counts_whole_pass(metric)
    kind = class_name(metric)
    if known and kind == SEGMENTATION:
        figures = names or ("pixAcc", "mIoU")
        made = [named_metric("", name) for name in ("pixel_accuracy", "mean_iou")]
        return [(name, metric, native) for name, native in zip(figures, made)]
    return [(None, metric, NATIVE[kind](metric) if known and kind in NATIVE else None)]


class _WholePass:
    """A function of the whole pass that computes one of MXNet's metrics, on the host."""

    def __init__(self, where: str, metric: Any) -> None:
        self._where, self._metric = where, host.copy_metric(metric)
        self.__name__ = type(metric).__name__

    def __call__(self, labels: Any, outputs: Any) -> float:
        """Return the figure for NumPy arrays, or lists of them."""
        groups = [each if isinstance(each, list) else [each] for each in (labels, outputs)]
        self._metric.reset()
        host.update_metric(self._where, self._metric, *[[mx.nd.array(a) for a in each] for each in groups])
        return float(self._metric.get()[1])


class HostMetric:
    """A metric of the user's own, updated batch by batch with arrays of MXNet.

    `term` declares what it takes; its `transform`, too, is called with arrays of MXNet.
    """

    def __init__(self, term: MetricTerm, metric: Any) -> None:
        self._term, self.metric, self.mode = term, metric, direction(metric)
        for name in {"state_dict", "load_state_dict"} & set(dir(metric)):
            setattr(self, name, getattr(metric, name))

    def __deepcopy__(self, memo: dict[int, Any]) -> HostMetric:
        return HostMetric(self._term, host.copy_metric(self.metric))

    def update(self, labels: Any, outputs: Any) -> None:
        """Update the metric with a batch of tensors; this waits for the device."""
        labels, outputs = ([each] if isinstance(each, torch.Tensor) else each for each in (labels, outputs))
        term, several = self._term, [to_array(each) for each in (*labels, *outputs)]
        values = dict(zip((*term.labels, *term.outputs), several))
        losses = dict(zip(term.losses, several[len(values) :]))
        host.update(self.metric, term, host.Measured([values], [losses], [len(several[0])]))

    def get(self) -> Any:
        """Return what the metric's `get` does."""
        return self.metric.get()

    def reset(self) -> None:
        """Discard everything measured."""
        self.metric.reset()


class Transform(GluonModule):
    """A MetricSpec's transform, traced; one that cannot be traced is called with arrays of MXNet."""

    def __init__(self, term: MetricTerm) -> None:
        super().__init__(f"{term.where}.transform", lambda: None)
        block = mx.gluon.nn.HybridSequential()
        self.held = Held(self, block, named_parameters(block, {}), {}, self.where)
        self.eval()
        function: Any = term.spec.transform
        self._function, self._is_traced = function, True
        try:
            self.trace(function, [False] * (len(term.args) + len(term.losses)), ())
        except SpecError:
            self._is_traced = False

    def forward(self, *tensors: Any) -> Any:
        """Return the labels and the outputs for the metric."""
        if self._is_traced:
            return self.compute("transform", self._function, tensors)
        returned = self._function(*map(to_array, tensors))
        groups = [[*each] if isinstance(each, (list, tuple)) else [each] for each in returned]
        device = tensors[0].device
        return [[torch.from_numpy(host.as_numpy(each)).to(device) for each in group] for group in groups]


def _transform(term: MetricTerm) -> Transform | None:
    return None if term.spec.transform is None else Transform(term)
