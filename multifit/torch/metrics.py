"""The stock metrics: sums over all values of a pass, on the device, from which figures are computed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import nan, prod
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..spec.checks import describe
from ..utils.errors import SpecError
from ..utils.text import quoted, shown, suggest
from .torchmetrics import TorchMetric as TorchMetric

UNCLEAR = (
    "the outputs have the shape of the labels, but they hold no classes (whole numbers), and the labels are "
    'not one-hot or other probabilities along axis 1; to compare value by value, give "binary_accuracy"; to '
    "compare the largest ones, transform=lambda scores, label: (label.argmax(1), scores)"
)
ONE_CLASS = (
    "there is one score for each label, so that class 0 always has the highest: {}; for scores above 0 "
    'for class 1, give "binary_accuracy"'
)
Present: TypeAlias = Tensor | None
Sums: TypeAlias = tuple[list[Tensor], int | Tensor]


@dataclass(frozen=True)
class StockMetric:
    """A metric that is computed from sums over the values of a pass.

    ``sums(label, output, present)`` returns a pair's sums, scalars or a vector, and the number of its values,
    without waiting for the device; `present` has the label's shape, and is 0 where the label is missing, or
    it is None. It raises SpecError for shapes that do not fit. ``value(totals)`` returns the figure from the
    sums over a pass, with the number in the last place. The figure of several pairs is that of their sums or,
    if it `averages`, the mean of their figures. `counts_ignored` says whether labels count that
    a loss, or the LabelSpec, ignores.
    """

    sums: Callable[[Any, Any, Present], Sums]
    value: Callable[[Any], float]
    mode: str = "max"
    takes_labels: bool = True
    averages: bool = False
    counts_ignored: bool = False

    def pairs(self, labels: Sequence[Any], outputs: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Return each label with its output; raises SpecError if their numbers differ."""
        if not self.takes_labels:
            return [(None, output) for output in outputs]
        if len(labels) != len(outputs) or not labels:
            raise SpecError(f"it compares labels with outputs one by one: {_shown(labels, outputs)}")
        return list(zip(labels, outputs))

    def figure(self, totals: Sequence[Any]) -> float:
        """Return the figure of pairs, given the totals of each."""
        if not self.averages:
            return self.value(np.sum(totals, axis=0))
        values = [self.value(each) for each in totals if each[-1]]
        return _ratio(sum(values), len(values))


def _shown(labels: Sequence[Any], outputs: Sequence[Any]) -> str:
    return f"labels {describe.arrays(labels)}; outputs {describe.arrays(outputs)}"


def _total(values: Tensor, present: Present) -> Tensor:
    """Return the sum of the present values: float64, or int64 for what is counted."""
    if present is not None:
        values = torch.where(present.reshape(values.shape) != 0, values, 0)
    return values.sum(dtype=torch.float64) if values.is_floating_point() else values.sum()


def _count(values: Tensor, present: Present) -> int | Tensor:
    return values.numel() if present is None else torch.count_nonzero(present)


def _ratio(total: float, count: float) -> float:
    return float(total / count) if count else nan


def _mean(totals: Any) -> float:
    return _ratio(totals[0], totals[-1])


def _root(totals: Any) -> float:
    return _mean(totals) ** 0.5


def _fit(label: Tensor, output: Tensor) -> Tensor:
    """Return a label in the shape of an output that it is compared with value by value."""
    if label.shape == output.shape:
        return label
    if label.shape[:1] != output.shape[:1] or label.numel() != output.numel():
        raise SpecError(f"it compares value by value: {_shown([label], [output])}, which differ")
    return label.reshape(output.shape)


def _scores(label: Tensor, output: Tensor, axis: int | None = None) -> tuple[Tensor, int]:
    """Return a label in the shape of an output without the axis of its classes, and that axis.

    It is `axis` if that is given, else 1 or the last one. Raises SpecError if there is none.
    """
    axes = (1, output.dim() - 1) if axis is None else (axis % max(output.dim(), 1),)
    rest = {each: output.shape[:each] + output.shape[each + 1 :] for each in axes if 0 < each < output.dim()}
    for each, shape in rest.items():
        if shape == label.shape:
            return label, each
    for each, shape in rest.items():  # such as labels (N, 1); (B, T) is not (T, B)
        if prod(shape) == label.numel() and (len(shape) != label.dim() or shape[0] == label.shape[0]):
            return label.reshape(shape), each
    found = _shown([label], [output])
    raise SpecError(f"it takes a class for each label, and its scores along axis 1 or the last one: {found}")


def _whole(label: Tensor) -> Tensor:
    return label.trunc() if label.is_floating_point() else label


def _not_probabilities(values: Tensor, axis: int) -> Tensor:
    """Return where values along an axis are below 0, or do not add up to 1."""
    return ((values.sum(axis) - 1).abs() > 1e-2) | (values.amin(axis) < 0)


def _elements(label: Any, output: Tensor, present: Present) -> Sums:
    return [_total(output, present)], _count(output, present)


def _error(power: int, label: Tensor, output: Tensor, present: Present) -> Sums:
    error = output - _fit(label, output)
    return [_total(error.abs() if power == 1 else error * error, present)], _count(label, present)


def _moments(label: Tensor, output: Tensor, present: Present) -> Sums:
    x, y = output.double(), _fit(label, output).double()
    return [_total(each, present) for each in (x, y, x * x, y * y, x * y)], _count(label, present)


def _pearson(totals: Any) -> float:
    x, y, xx, yy, xy, n = map(float, totals)
    spread = (n * xx - x * x) * (n * yy - y * y)
    return (n * xy - x * y) / spread**0.5 if spread > 0 else nan


def _matches(axis: int | None, label: Tensor, output: Tensor, present: Present) -> Sums:
    """Count right classes; labels of the outputs' shape are read as probabilities, and as classes."""
    if label.shape != output.shape:
        classes, axis = _scores(label, output, axis)
        if output.shape[axis] == 1:
            raise SpecError(ONE_CLASS.format(_shown([label], [output])))
        return [_total(output.argmax(axis) == _whole(classes), present)], _count(label, present)
    axis, whole = 1 if axis is None else axis, _whole(output)
    sums = [_total(whole == _whole(label), present), _total(whole != output, present)]
    size = label.shape[axis] if label.dim() > 1 else 1
    if size == 1:
        return [torch.zeros_like(sums[0]), torch.ones_like(sums[0]), *sums], _count(label, present)
    rows = None if present is None else present.amin(axis)
    right = _total(label.argmax(axis) == output.argmax(axis), rows) * size
    return [right, _total(_not_probabilities(label, axis), rows), *sums], _count(label, present)


def _accuracy(totals: Any) -> float:
    """Return the accuracy; the whole pass decides how labels of the outputs' shape are read."""
    if len(totals) == 2 or not totals[1]:
        return _mean(totals)
    if totals[3]:
        raise SpecError(UNCLEAR)
    return _mean(totals[2:])


def _binary(threshold: float, label: Tensor, output: Tensor, present: Present) -> Sums:
    matches = (output > threshold) == (_fit(label, output) > 0.5)
    return [_total(matches, present)], _count(label, present)


def _best(k: int, label: Tensor, output: Tensor, present: Present) -> Sums:
    classes, axis = _scores(label, output)
    if output.shape[axis] < k:
        raise SpecError(f"there are no {k} classes: {_shown([label], [output])}")
    best = output.topk(k, axis).indices == _whole(classes).unsqueeze(axis)
    return [_total(best.any(axis), present)], _count(label, present)


def _two_classes(label: Tensor, output: Tensor, present: Present) -> Sums:
    """Count hits, predicted and true labels of class 1, and labels of a third class."""
    if output.numel() == label.numel():  # one score, which is positive above 0
        predicted, label = output > 0, _whole(_fit(label, output))
    else:
        label, axis = _scores(label, output)
        predicted, label = output.argmax(axis) == 1, _whole(label)
    positive, third = label == 1, label.clamp(-1, 1) != label
    counted = predicted & positive, predicted, positive, third
    return [_total(each, present) for each in counted], _count(label, present)


def _f1(totals: Any) -> float:
    hits, predicted, positive, third, size = map(float, totals)
    if third:
        raise SpecError(
            f"{third:.0f} labels are neither 0 nor 1, and it is for two classes; for more, give a metric of "
            'torchmetrics or functools.partial(sklearn.metrics.f1_score, average="macro")'
        )
    return 2 * hits / (predicted + positive) if hits else 0.0 if size else nan


def _mcc(totals: Any) -> float:
    """Return Matthews' correlation coefficient, 0 if a class does not occur."""
    _f1(totals)  # checks the labels
    hits, predicted, positive, _, size = map(float, totals)
    spread = predicted * positive * (size - predicted) * (size - positive)
    return (hits * size - predicted * positive) / spread**0.5 if spread else 0.0 if size else nan


def _logarithms(ignore: float | None, least: float, label: Tensor, output: Tensor, present: Present) -> Sums:
    """Sum negative logarithms of outputs read as probabilities, and as scores; NaN for what is no class."""
    classes, axis = _scores(label, output)
    if ignore is not None:
        counts = label != ignore
        present = counts if present is None else counts & (present != 0)
    index = classes.long()
    inside = index.clamp(0, output.shape[axis] - 1)
    chosen = output.gather(axis, inside.unsqueeze(axis)).squeeze(axis)
    chosen = torch.where(inside == index, chosen, nan)
    sums = [_total(-chosen.clamp(min=least).log(), present), _total(output.logsumexp(axis) - chosen, present)]
    return [*sums, _not_probabilities(output, axis).sum()], _count(label, present)


def _cross_entropy(totals: Any) -> float:
    return _mean(totals[1:]) if totals[2] else _mean(totals)


def _perplexity(totals: Any) -> float:
    return float(np.exp(_cross_entropy(totals)))


def _table(ignore: float | None, label: Tensor, output: Tensor, present: Present) -> Sums:
    """Count labels (left out, each class, no class: the rows) by their predicted classes (the columns)."""
    label, axis = _scores(label, output)
    classes, row = output.shape[axis], label.long().clamp(-1, output.shape[axis]) + 1
    if ignore is not None:
        row = torch.where(label == ignore, 0, row)
    if present is not None:
        row = torch.where(present.reshape(row.shape) != 0, row, 0)
    cell, width = (row * classes + output.argmax(axis)).reshape(-1), (classes + 2) * classes
    if cell.device.type == "cpu":
        return [torch.bincount(cell, minlength=width)], 0
    table = torch.zeros(width, dtype=torch.float64, device=cell.device)  # pragma: no cover - needs a GPU
    return [table.scatter_add_(0, cell, torch.ones_like(cell, dtype=torch.float64))], 0  # pragma: no cover


def _of_table(totals: Any) -> tuple[Any, Any, Any, float]:
    """Return, by class, right, predicted and true labels, and the number of all; the last is no class."""
    classes = round(len(totals) ** 0.5) - 1  # there are (C + 2) * C sums
    table = np.zeros((classes + 1, classes + 1))
    table[:, :-1] = totals[classes:-1].reshape(classes + 1, classes)
    return np.diagonal(table), table.sum(0), table.sum(1), float(table.sum())


def _pixel_accuracy(totals: Any) -> float:
    right, _, _, size = _of_table(totals)
    return _ratio(right.sum(), size)


def _mean_iou(totals: Any) -> float:
    """Return the mean over the classes that occur of the intersection over the union."""
    right, predicted, labels = (each[:-1] for each in _of_table(totals)[:3])
    union = predicted + labels - right
    return _ratio((right[union > 0] / union[union > 0]).sum(), (union > 0).sum())


def _pcc(totals: Any) -> float:
    """Return Matthews' correlation coefficient of several classes."""
    right, predicted, labels, size = _of_table(totals)
    spread = (labels * (size - labels)).sum() * (predicted * (size - predicted)).sum()
    return _ratio((right * size - labels * predicted).sum(), spread**0.5)


def accuracy(axis: int | None = None) -> StockMetric:
    """Return the share of labels whose class has the highest score; by default, along axis 1 or the last."""
    return StockMetric(partial(_matches, axis), _accuracy)


def binary_accuracy(threshold: float = 0.0) -> StockMetric:
    """Return the share of values in which ``output > threshold`` agrees with a label of 0 or 1."""
    return StockMetric(partial(_binary, threshold), _mean)


def top_k(k: int) -> StockMetric:
    """Return the share of labels whose class has one of the `k` highest scores."""
    return StockMetric(partial(_best, k), _mean)


def perplexity(ignore: float | None = None) -> StockMetric:
    """Return exp of the mean negative log probability, without the labels that equal `ignore`."""
    return StockMetric(partial(_logarithms, ignore, 1e-10), _perplexity, "min")


COVERAGE = StockMetric(_elements, _mean, takes_labels=False)
ENTROPY = StockMetric(partial(_logarithms, None, 1e-12), _cross_entropy, "min")
PEARSON = StockMetric(_moments, _pearson)
NAMED = {
    **dict.fromkeys(("acc", "accuracy"), accuracy()),
    "binary_accuracy": binary_accuracy(),
    **dict.fromkeys(("ce", "cross-entropy", "cross_entropy", "crossentropy"), ENTROPY),
    **dict.fromkeys(("negativeloglikelihood", "nll_loss"), ENTROPY),
    "f1": StockMetric(_two_classes, _f1),
    "loss": StockMetric(_elements, _mean, "min", takes_labels=False),
    "mae": StockMetric(partial(_error, 1), _mean, "min", averages=True),
    "mcc": StockMetric(_two_classes, _mcc),
    "mse": StockMetric(partial(_error, 2), _mean, "min", averages=True),
    "pcc": StockMetric(partial(_table, None), _pcc),
    **dict.fromkeys(("pearson", "pearsoncorrelation", "pearsonr"), PEARSON),
    "rmse": StockMetric(partial(_error, 2), _root, "min", averages=True),
}
WITH_IGNORE: dict[str, Callable[[float | None], StockMetric]] = {
    "mean_iou": lambda ignore: StockMetric(partial(_table, ignore), _mean_iou),
    "perplexity": perplexity,
    "pixel_accuracy": lambda ignore: StockMetric(partial(_table, ignore), _pixel_accuracy),
}


def named_metric(where: str, name: str, ignore: float | None = None) -> StockMetric:
    """Return the stock metric of a name; `ignore` is the value of its label that means "no label".

    Raises SpecError if there is no metric of that name, or if the name lacks a number.
    """
    known = name.lower()
    if top := re.fullmatch(r"top_?(k|[1-9]\d*)(_?acc|_?accuracy)?", known):
        if top[1] == "k":
            raise SpecError(f'{where}: {shown(name)} needs the number of classes; give "top_5"')
        return top_k(int(top[1]))
    if known in WITH_IGNORE:
        return WITH_IGNORE[known](ignore)
    if known not in NAMED:
        valid = sorted([*NAMED, *WITH_IGNORE, "top_5"])
        raise SpecError(
            f"{where}: there is no metric {shown(name)}{suggest(name, valid)}; valid are {quoted(valid)}"
        )
    return NAMED[known]
