"""A metric as declared, in one stage."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..distributed import World
from ..engines import scikit
from ..engines.kept_arrays import KeptArrays
from ..engines.metric_figures import MetricFigures, function_of, is_torchmetrics, metrics_of_stages
from ..spec import TaskSpec
from ..spec.checks import describe
from ..spec.checks.values import partly_missing_problem
from ..spec.parsing import label_of
from ..spec.terms import MetricTerm, named_parts
from ..utils.errors import SpecError, raise_problems
from .labels import class_indices
from .loss_calls import divides_values
from .metrics import COVERAGE, StockMetric, Sums, named_metric
from .torchmetrics import TorchMetric
from .user_code import user_code


def declared_metrics(spec: TaskSpec) -> dict[str, list[StageMetric]]:
    """Return each stage's metrics; an object that is used twice is copied, so that its sums do not mix."""
    used: set[int] = set()

    def made(term: MetricTerm, declared: TaskSpec) -> StageMetric:
        metric = StageMetric(term, as_metric(term, declared), ignored_labels(declared))
        metric = metric.fork() if id(metric.metric) in used else metric
        used.add(id(metric.metric))
        return metric

    return metrics_of_stages(spec, made, lambda term: StageMetric(term, COVERAGE))


def as_metric(term: MetricTerm, spec: TaskSpec) -> Any:
    """Return what measures a term: a StockMetric, a function of the whole pass, or an object to update.

    Raises SpecError if there is no metric of that name, or if it cannot be used.
    """
    metric: Any = term.spec.metric
    if isinstance(metric, StockMetric):
        return metric
    if (function := function_of(term)) is not None:
        return scikit.WholePassFunction(function, term.where, term.spec.sample_weight is not None)
    if is_torchmetrics(metric):
        return TorchMetric(metric, term.where)
    if any(kind.__module__ == "mxnet.metric" for kind in type(metric).__mro__):
        raise SpecError(
            f"{term.where}: {type(metric).__name__} takes MXNet's arrays; for a PyTorch net, give a name, "
            'such as "accuracy", a metric of torchmetrics, or a function (labels, outputs) -> float'
        )
    ignored = [spec.label_specs[ref.name].ignore for ref in term.labels[:1] if ref.name in spec.label_specs]
    return named_metric(term.where, metric, *ignored) if isinstance(metric, str) else metric


def ignored_labels(spec: TaskSpec) -> dict[str, float]:
    """Return the value of each label that means "no label": as declared, or as a loss ignores it."""
    values: dict[str, float] = {}
    for term in spec.terms:
        _, ignored = class_indices(term.spec.fn)
        if ignored and term.labels:
            values.setdefault(term.labels[0].name, ignored[0])
    declared = {name: label.ignore for name, label in spec.label_specs.items()}
    return {**values, **{name: value for name, value in declared.items() if value is not None}}


class StageMetric(MetricFigures):
    """A metric in one stage, and its figures.

    A StockMetric is computed from sums over the pass, and a function from its arrays, which are `kept`. Other
    objects are updated batch by batch: ``update(labels, outputs)`` with tensors, or lists of these if several
    are named. A StockMetric leaves out labels of the value that `ignored` names, by label.
    """

    def __init__(self, term: MetricTerm, metric: Any, ignored: Mapping[str, float] | None = None) -> None:
        super().__init__(term, metric)
        self._ignored = ignored or {}
        self.kept = KeptArrays(term.where)
        self.is_summed = isinstance(metric, StockMetric)
        self.is_function = isinstance(metric, scikit.WholePassFunction)
        self.is_whole = self.is_summed or self.is_function
        self.sum_names: list[str] = []  # of the sums of each pair
        self._value, self._computed = math.nan, 0  # of the whole pass, from so many pieces of `kept`

    @property
    def where_computed(self) -> str:
        """Where it is computed, for the plan."""
        if self.is_summed:
            return "summed on the device"
        return "computed from the whole pass" if self.is_whole else "updated batch by batch"

    @property
    def merges(self) -> bool:
        """Whether what ranks have measured can be added up."""
        return self.is_whole or isinstance(self.metric, TorchMetric)

    def fork(self) -> StageMetric:
        """Return a copy that has measured nothing."""
        twin = StageMetric(
            self.term, self.metric if self.is_whole else copy.deepcopy(self.metric), self._ignored
        )
        twin.reset()
        return twin

    def add(self, result: Any, batch: int) -> list[Sums]:
        """Measure a batch, given its number, from 1; return the sums of each pair, if it is summed."""
        taken = self._taken(result)
        if taken is None:
            return []
        arrays, masks = taken
        if self.is_summed and self.term.spec.transform is None:
            count = len(self.term.labels)
            return self._sums(arrays[:count], arrays[count:], masks)
        return self._measure(arrays, masks, batch, result.batch.samples, result.batch.axis)

    def add_of_all(self, result: Any, batch: int, world: World, device: torch.device) -> None:
        """Update the object with a batch's tensors of all ranks, joined on the device, as one process would.

        If they cannot be joined, because their shapes differ, the object is updated rank by rank.
        """
        taken, axis = self._taken(result) if result.batch.samples else None, result.batch.axis
        own = taken and [[each.detach().to("cpu", copy=True) for each in group] for group in taken]
        rows = [each for each in world.gather(own and (own, result.batch.samples)) if each]
        pieces = [([[each.to(device) for each in group] for group in groups], n) for groups, n in rows]
        with suppress(RuntimeError):  # which is raised for shapes that differ
            columns = [list(zip(*of_ranks)) for of_ranks in zip(*(groups for groups, _ in pieces))]
            joined = [[_joined(each, axis, rows[0][1]) for each in group] for group in columns]
            pieces = [(joined, sum(n for _, n in pieces))] if pieces else []
        for (arrays, masks), samples in pieces:
            self._measure(arrays, masks, batch, samples, axis)

    def _taken(self, result: Any) -> tuple[list[Tensor], list[Tensor]] | None:
        """Return the labels and outputs that it takes, and where they are present; None without them."""
        slots, term = result.batch.slots, self.term
        labels = [slots.get(ref.name) for ref in term.labels]
        if any(each is None for each in labels) or any(slots.get(name) is None for name in term.optional):
            return None
        outputs = [result.outputs[ref.name] for ref in term.outputs] + self._losses(result)
        return [*labels, *(each.detach() for each in outputs)], [slots[ref.name] for ref in term.present]

    def _measure(
        self, arrays: list[Any], masks: list[Tensor], batch: int, size: int, axis: int
    ) -> list[Sums]:
        term = self.term
        if masks:
            arrays, size = self._present(arrays, masks)
            if not size:
                return []
        with user_code(lambda: f"{term.where}.update", *zip(map(str, (*term.labels, *term.outputs)), arrays)):
            labels, outputs = arrays[: len(term.labels)], arrays[len(term.labels) :]
            if term.spec.transform is not None:
                labels, outputs = self._transformed(labels, outputs)
            if self.is_summed:
                return self._sums(labels, outputs, [])
            if self.is_whole:
                hosts = ([_on_host(each) for each in group] for group in (labels, outputs))
                self.kept.add(batch, size, axis, *hosts)
            else:
                lists = isinstance(self.metric, TorchMetric)
                groups = [each[0] if len(each) == 1 and not lists else each for each in (labels, outputs)]
                self.metric.update(*groups)
                self.measured = True
        return []

    def _losses(self, result: Any) -> list[Tensor]:
        """Return the losses that it takes; a number counts as the loss of each sample."""
        named: dict[str, Tensor] = {}
        for term in result.spec.terms if self.term.losses else ():
            if term.key in result.parts:
                parts = result.parts[term.key]
                if divides_values(term):
                    parts = [each * (each.numel() / max(result.batch.samples, 1)) for each in parts]
                named.update(named_parts(term, parts))
        found = [named[name] for name in self.term.losses]
        return [each if each.dim() else each.expand(result.batch.samples) for each in found]

    def _sums(self, labels: list[Any], outputs: list[Any], masks: list[Tensor]) -> list[Sums]:
        metric, sums = self.metric, []
        present = {label_of(ref).name: mask for ref, mask in zip(self.term.present, masks)}
        outputs = labels if metric is COVERAGE else outputs
        try:
            for number, (label, output) in enumerate(metric.pairs(labels, outputs)):
                if not metric.takes_labels:
                    mask = _common(masks, output) if masks else None
                    sums.append(metric.sums(label, output, mask))
                    continue
                name = self.term.labels[number].name if number < len(self.term.labels) else ""
                ignored = None if metric.counts_ignored else self._ignored.get(name)
                sums.append(_without(ignored, metric, label, output, present.get(name)))
        except SpecError as error:
            raise SpecError(f"{self.term.where}: {error.problems[0]}") from None
        for number in range(len(self.sum_names), len(sums)):
            self.sum_names.append(f"{self.term.where} {number}")
        return sums

    def _present(self, arrays: list[Any], masks: list[Tensor]) -> tuple[list[Any], int]:
        """Return the samples that have all labels, and their number; on a GPU, this waits for it.

        Raises DataError if a sample has only a part of a label.
        """
        rows = torch.ones(len(masks[0]), dtype=torch.bool, device=masks[0].device)
        for ref, mask in zip(self.term.present, masks):
            flat = mask.reshape(len(mask), -1) != 0
            if count := int((~flat & flat.any(1, keepdim=True)).sum()):
                raise_problems([partly_missing_problem(self.term.where, label_of(ref).name, "", count)])
            rows &= flat.all(1)
        return [each[rows] if each.shape[:1] == rows.shape else each for each in arrays], int(rows.sum())

    def _transformed(self, labels: list[Any], outputs: list[Any]) -> tuple[list[Any], list[Any]]:
        arrays = dict(zip((*self.term.labels, *self.term.outputs), (*labels, *outputs)))
        losses, transform = outputs[len(self.term.outputs) :], self.term.spec.transform
        returned: Any = transform(*(arrays[ref] for ref in self.term.args), *losses)  # type: ignore[misc]
        if not isinstance(returned, (list, tuple)) or len(returned) != 2:
            found = f"{self.term.where}: transform returned {describe.structure(returned)}"
            raise SpecError(f"{found}; it must return (labels, outputs), each an array or a list of arrays")
        labels, outputs = ([*each] if isinstance(each, (list, tuple)) else [each] for each in returned)
        return labels, outputs

    def compute(self, totals: Mapping[str, Any], complete: bool) -> None:
        """Compute its value from a pass's sums, or from its arrays, if there are any.

        Unless the pass is `complete`, a function may raise ValueError, because it cannot be computed from so
        few samples: its figure is then NaN.
        """
        if pairs := [totals[name] for name in totals if name.rpartition(" ")[0] == self.term.where]:
            try:
                self._value, self.measured = self.metric.figure(pairs), True
            except SpecError as error:
                raise SpecError(f"{self.term.where}: {error.problems[0]}") from None
        elif len(self.kept) > self._computed:
            if torch.cuda.is_available():  # pragma: no cover - needs a GPU, which may still be copying
                torch.cuda.synchronize()
            labels, outputs = self.kept.joined()
            refs = (*self.term.labels, *self.term.outputs) if self.term.spec.transform is None else ()

            def compute() -> None:
                self._value = self.metric(labels, outputs)

            with user_code(lambda: f"{self.term.where}.update", *zip(map(str, refs), (*labels, *outputs))):
                self.measured = self.could_compute(compute, complete)
            self._computed = len(self.kept) if self.measured else 0

    def weighed(self, samples: int) -> dict[str, tuple[float, float]]:
        """Return its figures with their weights in a mean over ranks, of which this one has `samples`."""
        return {name: (value, samples) for name, value in self.figures().items()}

    def reset(self) -> None:
        """Discard everything measured."""
        if not self.is_whole:
            with user_code(lambda: f"{self.term.where}.reset"):
                self.metric.reset()
        self.kept.clear()
        self.measured, self._computed = False, 0

    @property
    def direction(self) -> str | None:
        """Whether it is better "min" or "max"; None if unknown."""
        return self.term.spec.mode or getattr(self.metric, "mode", None)

    def own_names(self) -> Sequence[str]:
        """Return nothing: objects name their figures themselves."""
        return ()

    def result(self) -> Any:
        """Return what the metric has computed: a value, several, or names and values."""
        if self.is_whole:
            return self._value
        with user_code(lambda: f"{self.term.where}.compute"):
            result = (getattr(self.metric, "compute", None) or self.metric.get)()
        if isinstance(result, Mapping):
            return list(result), [float(value) for value in result.values()]
        return result.detach().cpu().numpy() if isinstance(result, Tensor) else result

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add what :meth:`state` returned in another process, if that can be added."""
        super().merge(state)
        if isinstance(self.metric, TorchMetric) and state["measured"]:
            self.metric.merge(state["own"])
            self.measured = True


def _on_host(value: Any) -> np.ndarray[Any, Any]:
    """Return a copy in NumPy; that of a tensor on a GPU is complete once this was waited for."""
    if not isinstance(value, Tensor):
        return np.array(value, ndmin=1)
    tensor = torch.atleast_1d(value.detach())
    if tensor.device.type != "cuda":
        return tensor.to("cpu", copy=True).numpy()
    host = torch.empty_like(tensor, device="cpu", pin_memory=True)  # pragma: no cover - needs a GPU
    return host.copy_(tensor, non_blocking=True).numpy()  # pragma: no cover


def _without(value: float | None, metric: Any, label: Tensor, output: Tensor, present: Any) -> Sums:
    """Return a pair's sums and number without the labels that equal a value.

    If the number is known without waiting for the device, it is a plain number, in every batch.
    """
    counts: Any = None if value is None or label.shape == output.shape else label != value
    if counts is not None and not (label.device.type == "cpu" and bool(counts.all())):
        there = counts if present is None else counts & (present.reshape(counts.shape) != 0)
        found, number = metric.sums(torch.where(counts, label, 0), output, there.to(torch.float32))
    else:
        found, number = metric.sums(label, output, present)
    known = counts is not None and present is None and label.device.type == "cpu"
    return found, int(number) if known else number


def _joined(tensors: Sequence[Tensor], axis: int, samples: int) -> Tensor:
    """Return the tensors of several ranks as one; `samples` are those of the first."""
    return torch.cat(list(tensors), axis if tensors[0].shape[axis : axis + 1] == (samples,) else 0)


def _common(masks: Sequence[Tensor], values: Tensor) -> Tensor:
    """Return where the labels of a loss are present, in the shape of the values that it returned."""
    present = torch.ones(len(values), 1, device=values.device)
    for mask in masks:
        each = mask.reshape(len(mask), -1)
        present = present * (each if each.numel() == values.numel() else each.amin(1, keepdim=True))
    return present.expand(len(values), values[0].numel()).reshape(values.shape)
