"""The objective of a batch: every loss, times its weight, over its normalizer."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..distributed import World
from ..engines.forms import ResultForms
from ..engines.scale import Divisors, Scale, Scales
from ..spec import TaskSpec
from ..spec.checks import describe
from ..spec.terms import Ref, Term
from ..utils.errors import SpecError
from .batch import Batch
from .loss_calls import call_loss, needs_values, present_share
from .user_code import user_code

ENTROPIES: dict[Any, Any] = {F.cross_entropy: nn.CrossEntropyLoss, F.nll_loss: nn.NLLLoss}


@dataclass
class Losses:
    """What the losses computed from a batch, by loss.

    `parts` are what a loss returned, and `sums` the sums of these over the samples of this rank, without
    gradients. `objectives` are the terms that are minimised; their sum over the ranks is the objective.
    """

    parts: dict[str, list[Tensor]]
    sums: dict[str, list[Tensor]]
    objectives: dict[str, Tensor]


class Objective(Scales):
    """Computes the terms of a spec's objective, and what they are multiplied by.

    A loss that returns a number returns the mean over the batch's samples; of any other, all values are added
    up, and divided by the samples of the whole batch, or by its normalizer. The mean of a
    cross entropy that ignores labels, or weighs classes, is divided by the weights of the labels that count.
    `captured` says whether steps are captured as CUDA graphs.
    """

    array = "a tensor"
    user_code, present_share = staticmethod(user_code), staticmethod(present_share)

    def __init__(
        self,
        spec: TaskSpec,
        world: World,
        device: torch.device,
        divisors: Divisors | None,
        captured: bool = False,
    ) -> None:
        super().__init__(spec.terms, world, divisors)
        self._device, self._captured = device, captured
        self._ignored = {name: label.ignore for name, label in spec.label_specs.items()}
        self._summed = {term.key: _summed(term) for term in self.terms}
        # all ranks, and all batches of an update, must count alike; and looking at labels waits for a GPU
        looks = world.alone and divisors is None and device.type == "cpu" and not captured
        self._counts_always = not looks
        self.forms = ResultForms(Tensor)
        self._first_labels: dict[str, tuple[int, str]] = {}  # the number of their axes, and what they are

    def __call__(self, arrays: Mapping[Ref, Any], batch: Batch, scale: Scale) -> Losses:
        """Call the losses with a batch's outputs and slots."""
        computed = Losses({}, {}, {})
        for term in self.terms:
            if not term.has_slots(arrays):
                continue
            is_mean = not self._weighs(term, batch)
            parts = call_loss(term if is_mean else self._summed[term.key], arrays, samples=batch.samples)
            self.forms.check_loss(term, parts, batch.samples, batch.axis)
            self._check_labels(term, batch)
            sums = [_sum(part, batch.samples if is_mean else 1) for part in parts]
            if not is_mean:  # what the loss itself returns
                divisor = self.normalizer(term, batch)
                parts = [_quotient(part, 1.0, divisor) for part in parts]
            computed.parts[term.key] = parts
            computed.sums[term.key] = [each.detach() for each in sums]
            value, total = parts[term.minimized], sums[term.minimized]
            divisor = scale.divisors[term.key]
            if is_mean and value.dim() == 0 and divisor == batch.samples:
                total, divisor = value, 1.0
            computed.objectives[term.key] = _quotient(total, scale.weights[term.key], divisor)
        return computed

    def _check_labels(self, term: Term, batch: Batch) -> None:
        """Raise SpecError for labels with other axes than in the first batch, which PyTorch would broadcast.

        Losses of Gluon reshape their labels.
        """
        for ref in () if hasattr(term.spec.fn, "class_axis") else term.labels:
            label: Any = batch.slots[ref.name]
            if ref.name not in self._first_labels:
                self._first_labels[ref.name] = label.dim(), describe.array(label)
            axes, first = self._first_labels[ref.name]
            if axes != label.dim():
                raise SpecError(
                    f'{term.where}: the label "{ref.name}" is {describe.array(label)}, but {first} in the '
                    "first batch; give the same number of axes in every batch"
                )

    def normalized(self, batch: Batch) -> list[Term]:
        """Return the losses with another normalizer than the number of samples."""
        if not self._world.alone:  # a rank without samples does not know the labels
            return [term for term in self.terms if not term.counts_samples or self._summed[term.key]]
        return [term for term in self.terms if not term.counts_samples or self._weighs(term, batch)]

    def counted(self, term: Term, batch: Batch) -> Any:
        """Return the number of samples, or the weights of the labels that a cross entropy counts."""
        if not self._weighs(term, batch):
            return super().counted(term, batch)
        return _counted(self._summed[term.key].spec.fn, batch.slots[term.labels[0].name])

    def summed(self, value: Any, batch: Batch) -> Any:
        """Return the sum of a tensor; if it is not read, NaN for a sum below 0, and so is the loss."""
        if not isinstance(value, Tensor):
            return super().summed(value, batch)
        total = value.detach().sum(dtype=torch.float64)
        reads = value.device.type == "cpu" and not self._captured
        return float(total) if reads else torch.where(total >= 0, total, math.nan)

    def joined(self, values: list[Any], batch: Batch) -> list[Any]:
        """Return the sums over the ranks, without waiting for the device."""
        vector = torch.stack(
            [torch.as_tensor(each, dtype=torch.float64, device=self._device) for each in values]
        )
        self._world.all_reduce_tensors([vector])
        return list(vector.unbind())

    def _weighs(self, term: Term, batch: Batch) -> bool:
        """Whether a loss is the mean of a cross entropy over some of the labels, or with their weights."""
        if self._summed[term.key] is None:
            return False
        fn: Any = self._summed[term.key].spec.fn
        label: Any = batch.slots.get(term.labels[0].name)
        if label is None or label.is_floating_point():
            return False
        declared = self._ignored.get(term.labels[0].name)
        if label.dim() > 1 or fn.weight is not None or fn.ignore_index != -100 or declared is not None:
            return True
        return self._counts_always or bool((label == -100).any())


def _sum(part: Tensor, samples: int) -> Tensor:
    """Return the sum of what a loss returned; a number is the mean over the `samples`."""
    return part * samples if part.dim() == 0 else part.sum()


def _quotient(total: Tensor, weight: float, divisor: Any) -> Tensor:
    if not isinstance(divisor, Tensor):
        factor = weight / divisor if divisor else 0.0
        return total if factor == 1 else total * factor
    empty = divisor == 0
    factor = torch.where(empty, 0.0, weight / divisor).to(total.device, total.dtype)
    return torch.where(empty.to(total.device), torch.zeros_like(total), total * factor)


def _counted(fn: Any, label: Tensor) -> Tensor:
    """Return the sum of the weights of the labels that a cross entropy does not ignore."""
    counts = label != fn.ignore_index
    if fn.weight is None:
        return counts.sum(dtype=torch.float64)
    weights = fn.weight[torch.where(counts, label, 0)]
    return torch.where(counts, weights, 0).sum(dtype=torch.float64)


def _summed(term: Term) -> Any:
    """Return a term whose cross entropy adds up what it averages; None for any other loss."""
    fn: Any = term.spec.fn
    if fn is None or not term.labels or needs_values(term):
        return None
    function, bound = (fn.func, fn) if isinstance(fn, partial) else (fn, partial(fn))
    if function in ENTROPIES and not bound.args:
        fn = ENTROPIES[function](**bound.keywords)
    is_entropy = isinstance(fn, (nn.CrossEntropyLoss, nn.NLLLoss)) and fn.reduction == "mean"
    if not is_entropy:
        return None
    summed = copy.copy(fn)
    summed.reduction = "sum"
    return replace(term, spec=replace(term.spec, fn=summed))
