"""The slots that are added to a batch: where labels are present, weights of values, and carried state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..checks import describe
from ..errors import DataError, Problem, SpecError
from ..spec import LabelSpec, TaskSpec
from ..spec.names import NAN, listed
from ..spec.parsing import is_missable, presence
from ..spec.terms import Term
from ..spec.validate import BALANCED

if TYPE_CHECKING:
    from .batch import Batch

Slots = dict[str, Tensor | None]
KnownLabels = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""The shape and the dtype of each label that may be missing, in the last batch that had it."""


class MissingLabels:
    """Replaces missing labels before a loss sees them: masking the loss afterwards would leave NaN gradients.

    `labels` are all labels of a spec by name. `known` holds the shapes and dtypes that batches have shown,
    and is kept up to date.
    """

    def __init__(self, labels: Mapping[str, LabelSpec], known: KnownLabels | None = None) -> None:
        self._labels = {name: label for name, label in labels.items() if is_missable(label)}
        masks = {label.missing for label in self._labels.values() if isinstance(label.missing, str)} - {NAN}
        self._optional = list(dict.fromkeys([*self._labels, *sorted(masks)]))
        self._known: KnownLabels = {} if known is None else known

    def __bool__(self) -> bool:
        return bool(self._labels)

    def __contains__(self, name: str) -> bool:
        return name in self._labels

    def fill_in(self, slots: Mapping[str, Any], batch_axis: int) -> tuple[dict[str, Any], list[Problem]]:
        """Return a batch's slots, with tensors of missing values for labels that are None, and problems."""
        if batch_axis:
            message = "labels that may be missing need samples along axis 0, and batch_axis is"
            return dict(slots), [Problem("data", f"{message} {batch_axis}")]
        filled, problems = dict(slots), []
        size = next((len(each) for each in slots.values() if getattr(each, "shape", ())), 0)
        for name in self._optional:
            value = slots.get(name)
            if isinstance(value, Tensor):
                self._known[name] = tuple(value.shape), value.dtype
            elif value is None and name in slots and size:
                why: str | None = "its shape is not known before a batch has it; begin with a batch that has it"
                if name in self._known:
                    why = self.problem_of(name, self._known[name][1])
                if why:
                    problems.append(Problem("data", f'the slot "{name}" is None, and {why}'))
                else:
                    filled[name] = self.rows(name, size, *self._known[name])
        return filled, problems

    def problem_of(self, name: str, dtype: torch.dtype) -> str | None:
        """Return why a tensor of this dtype cannot say that a label is missing, or None."""
        missing = self._labels[name].missing if name in self._labels else None
        value = math.nan if missing == NAN else missing
        if isinstance(value, (str, type(None))) or _can_represent(dtype, value):
            return None
        kind, lacks = str(dtype).removeprefix("torch."), "NaN" if missing == NAN else f"{value:g}"
        return f'the label "{name}" is {kind}, which has no {lacks}; give floats, or missing= another value'

    def rows(self, name: str, size: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a label's tensor for `size` samples that lack it, like a batch of this shape and dtype."""
        missing = self._labels[name].missing if name in self._labels else 0
        value: Any = {NAN: math.nan}.get(missing, 0) if isinstance(missing, str) else missing
        return torch.full((size, *shape[1:]), value, dtype=dtype)

    def replace(self, slots: Slots, dtype_of: Callable[[str, torch.dtype], torch.dtype]) -> Slots:
        """Return the slots with 0 in place of missing values, and slots that say what is present.

        ``dtype_of(name, dtype)`` returns the dtype to which a label of this dtype is then cast.
        """
        replaced = dict(slots)
        for name, label in self._labels.items():
            values = slots.get(name)
            if values is not None:  # labels may be left out when predicting
                dtype = dtype_of(name, values.dtype)
                if values.is_floating_point() and dtype.is_floating_point and dtype.itemsize < values.itemsize:
                    values = values.to(dtype)  # -999.9 in float32 is not the same number as in float64
                present = _present(label, values, slots)
                replaced[name] = values.masked_fill(~present, 0).to(dtype)
                replaced[presence(name)] = present.to(torch.float32)
        return replaced


@cache  # called for every batch
def _can_represent(dtype: torch.dtype, value: float) -> bool:
    """Whether tensors of a dtype can represent a value, real ones after rounding it."""
    if dtype.is_floating_point:
        return True
    if dtype is torch.bool:
        return value in (0, 1)
    limits = torch.iinfo(dtype)
    return limits.min <= value <= limits.max and value == int(value)


def _present(label: LabelSpec, values: Tensor, slots: Mapping[str, Any]) -> Tensor:
    """Return where a label is present, bool, of the label's shape."""
    missing: Any = label.missing
    if missing == NAN:
        return values == values
    if not isinstance(missing, str):
        if _can_represent(values.dtype, missing):
            return values != missing
        return torch.ones_like(values, dtype=torch.bool)
    mask = slots[missing]
    if mask is None:
        return torch.zeros_like(values, dtype=torch.bool)
    if mask.numel() == values.numel():
        return (mask != 0).reshape(values.shape)
    if mask.numel() == len(values):
        return (mask != 0).reshape(-1, *[1] * (values.dim() - 1)).expand_as(values)
    raise DataError(
        f'labels["{label.name}"]: "{missing}" is {describe.array(mask)}, and the label is '
        f"{describe.array(values)}; give one number for each sample, or one for each of its values"
    )


# ------------------------------------------------------------------------------------ weights of values

BalancedWeights = dict[str, Sequence[float]]
"""The weight of each class that was counted, by loss."""


class ValueWeights:
    """Adds to each batch the slots with the weights of the losses' values, of dtype `real`.

    A slot has the shape of the loss's first label if there are weights of classes, or if `sample_weight` has
    as many values. Otherwise, it has one weight for each sample, (N,). `balanced` holds the weights that
    were counted; until then, they are 1, which `log_once` logs.
    """

    def __init__(
        self, spec: TaskSpec, real: torch.dtype, balanced: BalancedWeights, log_once: Callable[[str], None]
    ) -> None:
        self._terms = {term.weights.name: term for term in spec.terms if term.weights is not None}
        self._real, self._balanced, self._log_once = real, balanced, log_once
        self._tables: dict[Any, Tensor] = {}  # by their values and device

    def __bool__(self) -> bool:
        return bool(self._terms)

    def add(self, slots: Slots, size: int, axis: int) -> Slots:
        """Return the slots with the weights; None where a batch lacks what they are made from.

        `size` is the number of samples, which lie along `axis`. Raises DataError if the weights of samples
        fit neither the samples nor the label.
        """
        added = dict(slots)
        for name, term in self._terms.items():
            taken = [*(ref.name for ref in term.labels), *listed(term.spec.sample_weight)]
            there = all(slots.get(slot) is not None for slot in taken)
            added[name] = self._weights(term, slots, size, axis) if there else None
        return added

    def _weights(self, term: Term, slots: Mapping[str, Any], size: int, axis: int) -> Tensor:
        label: Tensor | None = slots[term.labels[0].name] if term.labels else None
        of_classes = None
        if term.spec.class_weights is not None and label is not None:
            table = self._table(term, label.device)
            of_classes = table[label.long().clamp(0, len(table) - 1)]
        if term.spec.sample_weight is None:
            assert of_classes is not None
            return of_classes
        weights: Tensor = slots[term.spec.sample_weight].to(self._real)
        if label is not None and weights.numel() == label.numel():
            weights = weights.reshape(label.shape)
        elif weights.numel() == size:
            weights = weights.reshape(-1)
        elif label is not None:
            raise DataError(
                f'{term.where}: sample_weight "{term.spec.sample_weight}" is {describe.array(weights)}, and '
                f'the label "{term.labels[0].name}" {describe.array(label)}; give one number for each '
                "sample, or one for each of the label's values"
            )
        if of_classes is None or label is None:
            return weights
        if weights.shape != label.shape:
            weights = weights.reshape([size if i == axis else 1 for i in range(label.dim())])
        return of_classes * weights

    def _table(self, term: Term, device: torch.device) -> Tensor:
        """Return the weight of each class; of a label beyond it, the last one is taken."""
        weights: Any = term.spec.class_weights
        if weights == BALANCED:
            weights = self._balanced.get(term.key, ())
            if not weights:
                self._log_once(f'{term.where}: class_weights="balanced" are 1 until fit counts the labels')
        if isinstance(weights, Mapping):
            weights = [weights.get(key, 1.0) for key in range(int(max(weights)) + 1)]
        beyond = () if isinstance(term.spec.class_weights, tuple) else (1.0,)
        key = (*weights, *beyond), device
        if key not in self._tables:
            self._tables[key] = torch.tensor(key[0], dtype=self._real, device=device)
        return self._tables[key]


# ---------------------------------------------------------------------------------------- carried state


class CarriedState:
    """The outputs of a stage's last batch that are inputs of the next one, without gradients.

    `shapes` are the shapes of these slots, with 0 for the number of samples; `dtype` is that of the net.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], device: torch.device, dtype: torch.dtype
    ) -> None:
        self.shapes, self._device, self._dtype = shapes, device, dtype
        self._tensors: dict[str, Tensor] = {}

    def reset(self) -> None:
        """Begin with zeros again."""
        self._tensors = {}

    def fill_in(self, batch: Batch) -> None:
        """Add the state to a batch's slots; raises DataError if their numbers of samples differ."""
        for name, shape in self.shapes.items():
            wanted = tuple(size or batch.samples for size in shape)
            if name not in self._tensors:
                batch.slots[name] = torch.zeros(wanted, dtype=self._dtype, device=self._device)
                continue
            batch.slots[name] = self._tensors[name]
            if self._tensors[name].shape != wanted:
                before = self._tensors[name].shape[shape.index(0)]
                raise DataError(
                    f"state: {self._device} gets {batch.samples} samples of a batch, but the state of the "
                    f"previous batch has {before}; make all batches equally large: drop_last=True"
                )

    def keep(self, batch: Batch, outputs: Mapping[str, Tensor]) -> None:
        """Remember the outputs of a batch; raises as :meth:`check` does."""
        if batch.samples:
            self.check(batch, outputs)
            # copied, because an output that is a parameter changes when that is updated
            self._tensors = {name: outputs[name].detach().to(self._dtype, copy=True) for name in self.shapes}

    def check(self, batch: Batch, outputs: Mapping[str, Tensor]) -> None:
        """Raise SpecError if an output does not have the shape of its slot."""
        for name in self.shapes:
            slot = batch.slots[name]
            if slot is None or outputs[name].shape != slot.shape:
                raise SpecError(
                    f'state: "{name}" is {describe.array(slot)} as an input, but the output "{name}" is '
                    f"{describe.array(outputs[name])}; declare the shape of the output, with 0 for the "
                    "number of samples"
                )

    def state(self) -> dict[str, Tensor]:
        """Return the state, empty before the first batch, for a checkpoint."""
        return dict(self._tensors)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state` returned."""
        self._tensors = {name: tensor.to(self._device, copy=True) for name, tensor in state.items()}
