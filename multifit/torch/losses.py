"""The objective of a batch: every loss, times its weight, over its normalizer."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..arguments import is_finite_number
from ..checks import describe
from ..distributed import World
from ..engines.forms import ResultForms
from ..errors import SpecError, shown, user_code
from ..spec import TaskSpec
from ..spec.names import Ref
from ..spec.terms import Term
from ..spec.validate import weight_of
from ..state import RunState
from .batch import Batch
from .loss_calls import call_loss, needs_values, present_share

VALID_NORMALIZER = "it must be, or return, a tensor or a finite number, whose sum is at least 0"
ENTROPIES: dict[Any, Any] = {F.cross_entropy: nn.CrossEntropyLoss, F.nll_loss: nn.NLLLoss}
Number: TypeAlias = float | Tensor
Shares = Callable[[Sequence[Term], int], Mapping[str, float]]


@dataclass
class Scale:
    """The weights of a batch's losses, and what they are divided by, by loss.

    `norms` are the normalizers of the whole batch, over all ranks: numbers, or tensors without dimensions.
    `divisors` are these too, unless the batch is one of several that make an update.
    """

    weights: dict[str, float]
    norms: dict[str, Number]
    divisors: dict[str, Number]


@dataclass
class Losses:
    """What the losses computed from a batch, by loss.

    `parts` are what a loss returned, and `sums` the sums of these over the samples of this rank, without
    gradients. `objectives` are the terms that are minimised; their sum over the ranks is the objective.
    """

    parts: dict[str, list[Tensor]]
    sums: dict[str, list[Tensor]]
    objectives: dict[str, Tensor]


class Objective:
    """Computes the terms of a spec's objective.

    A loss that returns a number returns the mean over the batch's samples; of any other, all values are added
    up, and divided by the samples of the whole batch, or by the loss's own normalizer. The mean of a
    cross entropy that ignores labels, or weighs classes, is divided by the weights of the labels that count.
    If a normalizer is 0, so is the term. ``shares(terms, samples)`` returns what terms are divided by if a
    batch of these samples is one of several that make an update. `captured` says whether steps are captured
    as CUDA graphs.
    """

    def __init__(
        self,
        spec: TaskSpec,
        world: World,
        device: torch.device,
        shares: Shares | None,
        captured: bool = False,
    ) -> None:
        self.terms, self._world, self._device, self._shares = spec.terms, world, device, shares
        self._ignored = {name: label.ignore for name, label in spec.label_specs.items()}
        self._summed = {term.key: _summed(term) for term in self.terms}
        self._is_fixed = not any(callable(term.spec.weight) for term in self.terms)
        # all ranks, and all batches of an update, must count alike; and looking at labels waits for a GPU
        looks = world.alone and shares is None and device.type == "cpu" and not captured
        self._counts_always = not looks
        self._scales: dict[int, Scale] = {}
        self.forms = ResultForms(Tensor)
        self._first_labels: dict[str, tuple[int, str]] = {}  # the number of their axes, and what they are

    def scale(self, batch: Batch, state: RunState | None) -> Scale:
        """Return the weights and normalizers of a batch; afterwards, its total number of samples is known.

        Raises SpecError if a function returns what cannot be a weight or a normalizer.
        """
        if batch.total is None:
            batch.total = int(self._world.sum([batch.samples])[0])
        counting = [term for term in self.terms if self._counts(term, batch)]
        if not counting and batch.total in self._scales:
            return self._scales[batch.total]
        weights = {term.key: weight_of(term, state) for term in self.terms}
        norms: dict[str, Number] = dict.fromkeys(weights, float(batch.total))
        if counting:
            norms.update(self._add_up({term.key: self.normalizer(term, batch) for term in counting}))
            for term in counting:
                if least := getattr(term.spec.normalize_by, "least", 0):  # see MatchedAnchors
                    norms[term.key] = torch.clamp(torch.as_tensor(norms[term.key]), min=least)
        divisors = norms
        if counting and self._shares is not None:
            divisors = {**norms, **self._shares(counting, batch.total)}
        scale = Scale(weights, norms, divisors)
        if not counting and self._is_fixed and len(self._scales) < 64:
            self._scales[batch.total] = scale
        return scale

    def __call__(self, arrays: Mapping[Ref, Any], batch: Batch, scale: Scale) -> Losses:
        """Call the losses with a batch's outputs and slots."""
        computed = Losses({}, {}, {})
        self.forms.begin(batch.samples, batch.axis)
        for term in self.terms:
            if not term.has_slots(arrays):
                continue
            is_mean = not self._weighs(term, batch)
            parts = call_loss(term if is_mean else self._summed[term.key], arrays, samples=batch.samples)
            self.forms.check_loss(term, parts)
            self._check_labels(term, batch)
            sums = [_sum(part, batch.samples if is_mean else 1) for part in parts]
            if not is_mean:  # what the loss itself returns
                own = self.normalizer(term, batch)
                parts = [_quotient(part, 1.0, own) for part in parts]
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

    def normalizer(self, term: Term, batch: Batch) -> Number:
        """Return this rank's part of a term's normalizer: a number, or a tensor without dimensions."""
        if not term.optional.isdisjoint(batch.absent) or not batch.samples:
            return 0.0
        by = term.spec.normalize_by
        if by is None and term.present:
            return present_share(term, batch.slots).sum(dtype=torch.float64)
        if by is None:
            labels: Any = [batch.slots[ref.name] for ref in term.labels]
            fn = self._summed[term.key] and self._summed[term.key].spec.fn
            return _counted(fn, labels[0]) if self._weighs(term, batch) else float(batch.samples)
        with user_code(lambda: f"{term.where}.normalize_by"):
            value: Any = by(batch.slots) if callable(by) else batch.slots[by]
        if isinstance(value, Tensor):
            summed = value.detach().sum(dtype=torch.float64)
            if value.device.type != "cpu":  # pragma: no cover - needs a GPU
                return torch.where(summed >= 0, summed, math.nan)  # without waiting; the loss is NaN then
            value = float(summed)
        total = float(value) if is_finite_number(value) else math.nan
        if not 0 <= total < math.inf:
            raise SpecError(f"{term.where}: normalize_by is {shown(value)}; {VALID_NORMALIZER}")
        return total

    def _counts(self, term: Term, batch: Batch) -> bool:
        """Whether a term's normalizer is another one than the number of samples."""
        if self._world.alone or not term.counts_samples:
            return not term.counts_samples or self._weighs(term, batch)
        return self._summed[term.key] is not None  # a rank without samples does not know the label

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

    def _add_up(self, own: Mapping[str, Number]) -> dict[str, Number]:
        """Return the sums of normalizers over the ranks, without waiting for the device."""
        if self._world.alone:
            return dict(own)
        numbers = [torch.as_tensor(each, dtype=torch.float64, device=self._device) for each in own.values()]
        vector = torch.stack(numbers)
        self._world.all_reduce_tensors([vector])
        return dict(zip(own, vector.unbind()))


def _sum(part: Tensor, samples: int) -> Tensor:
    """Return the sum of what a loss returned; a number is the mean over the `samples`."""
    return part * samples if part.dim() == 0 else part.sum()


def _quotient(total: Tensor, weight: float, divisor: Number) -> Tensor:
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
    function, given = (fn.func, fn) if isinstance(fn, partial) else (fn, partial(fn))
    if function in ENTROPIES and not given.args:
        fn = ENTROPIES[function](**given.keywords)
    is_entropy = isinstance(fn, (nn.CrossEntropyLoss, nn.NLLLoss)) and fn.reduction == "mean"
    if not is_entropy:
        return None
    summed = copy.copy(fn)
    summed.reduction = "sum"
    return replace(term, spec=replace(term.spec, fn=summed))
