"""The slots that are added to batches, as far as all engines have them in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..checks import describe
from ..errors import DataError, Problem
from ..protocols import Shape
from ..spec import LabelSpec, TaskSpec
from ..spec.names import NAN, listed
from ..spec.parsing import is_missable
from ..spec.terms import Term
from ..spec.validate import BALANCED

KnownLabels = dict[str, tuple[Shape, Any]]
"""The shape and the dtype of each label that may be missing, in the last batch that had it."""


class MissingLabels(ABC):
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

    @abstractmethod
    def full(self, shape: Shape, value: float, dtype: Any) -> Any:
        """Return an array that is filled with a value."""

    @abstractmethod
    def can_represent(self, dtype: Any, value: float) -> bool:
        """Whether arrays of a dtype can represent a value, real ones after rounding it."""

    @abstractmethod
    def dtype_name(self, dtype: Any) -> str:
        """Return the name of a dtype, such as float32."""

    def fill_in(self, arrays: dict[str, Any], batch_axis: int) -> tuple[dict[str, Any], list[Problem]]:
        """Return a batch's arrays, with arrays of missing values for labels that are None, and problems."""
        if batch_axis:
            message = "labels that may be missing need samples along axis 0, and batch_axis is"
            return arrays, [Problem("data", f"{message} {batch_axis}")]
        for name in self._optional:
            if arrays.get(name) is not None:
                self._known[name] = tuple(arrays[name].shape), arrays[name].dtype
        left_out = [name for name in self._optional if name in arrays and arrays[name] is None]
        sizes = [array.shape[0] for array in arrays.values() if array is not None and array.shape]
        if not left_out or not sizes:
            return arrays, []
        if problems := [problem for name in left_out if (problem := self._cannot_fill(name))]:
            return arrays, problems
        return {**arrays, **{name: self.rows(name, sizes[0], *self._known[name]) for name in left_out}}, []

    def problem_of(self, name: str, dtype: Any) -> str | None:
        """Return why an array of this dtype cannot say that a label is missing, or None."""
        missing = self._labels[name].missing if name in self._labels else None
        value = math.nan if missing == NAN else missing
        if isinstance(value, (str, type(None))) or self.can_represent(dtype, value):
            return None
        kind, lacks = self.dtype_name(dtype), "NaN" if missing == NAN else f"{value:g}"
        return f'the label "{name}" is {kind}, which has no {lacks}; give floats, or missing= another value'

    def rows(self, name: str, size: int, shape: Shape, dtype: Any) -> Any:
        """Return a label's array for `size` samples that lack it, like a batch of this shape and dtype."""
        missing: Any = self._labels[name].missing if name in self._labels else 0
        value = {NAN: math.nan}.get(missing, 0) if isinstance(missing, str) else missing
        return self.full((size, *shape[1:]), value, dtype)

    def misfit(self, label: LabelSpec, mask: Any, values: Any) -> DataError:
        """Return the error about a mask that fits neither the samples of a label nor its values."""
        return DataError(
            f'labels["{label.name}"]: "{label.missing}" is {describe.array(mask)}, and the label is '
            f"{describe.array(values)}; give one number for each sample, or one for each of its values"
        )

    def _cannot_fill(self, name: str) -> Problem | None:
        why = "its shape is not known before a batch has it; begin with a batch that has it"
        if name in self._known:
            why = self.problem_of(name, self._known[name][1]) or ""
        return Problem("data", f'the slot "{name}" is None, and {why}') if why else None


BalancedWeights = dict[str, Sequence[float]]
"""The weight of each class that was counted, by loss."""


class ValueWeights(ABC):
    """Adds to each batch the slots with the weights of the losses' values, of dtype `real`.

    `balanced` holds the weights that were counted; until then, they are 1, which `log_once` logs.
    """

    def __init__(
        self, spec: TaskSpec, real: Any, balanced: BalancedWeights, log_once: Callable[[str], None]
    ) -> None:
        self._terms = {term.weights.name: term for term in spec.terms if term.weights is not None}
        self._real, self._balanced, self._log_once = real, balanced, log_once
        self._tables: dict[Any, Any] = {}  # by their values and device

    def __bool__(self) -> bool:
        return bool(self._terms)

    @abstractmethod
    def weights_of(self, term: Term, slots: Mapping[str, Any], size: int, axis: int) -> Any:
        """Return the weights of a loss's values."""

    @abstractmethod
    def new_table(self, weights: tuple[float, ...], device: Any) -> Any:
        """Return weights of classes as an array of dtype `real`."""

    def add(self, slots: Mapping[str, Any], size: int, axis: int) -> dict[str, Any]:
        """Return one device's slots with the weights; None where a batch lacks what they are made from.

        `size` is the number of samples, which lie along `axis`. Raises DataError if the weights of samples
        fit neither the samples nor the label.
        """
        added = dict(slots)
        for name, term in self._terms.items():
            taken = [*(ref.name for ref in term.labels), *listed(term.spec.sample_weight)]
            there = all(slots.get(slot) is not None for slot in taken)
            added[name] = self.weights_of(term, slots, size, axis) if there else None
        return added

    def table(self, term: Term, device: Any) -> Any:
        """Return the weight of each class on a device; of a label beyond it, the last one is taken."""
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
            self._tables[key] = self.new_table(*key)
        return self._tables[key]

    def misfit(self, term: Term, weights: Any, label: Any) -> DataError:
        """Return the error about weights of samples that fit neither these nor the label's values."""
        return DataError(
            f'{term.where}: sample_weight "{term.spec.sample_weight}" is {describe.array(weights)}, and the '
            f'label "{term.labels[0].name}" {describe.array(label)}; give one number for each sample, or one '
            "for each of the label's values"
        )
