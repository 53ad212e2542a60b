"""The slots that are added to batches: where labels are present, weights of values, and carried state."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..spec import LabelSpec, TaskSpec
from ..spec.checks import describe
from ..spec.parsing import is_missable, presence
from ..spec.terms import NAN, Term, listed
from ..spec.validate import BALANCED
from ..utils.errors import DataError, Problem, SpecError
from ..utils.protocols import Shape

KnownLabels = dict[str, tuple[Shape, Any]]
"""The shape and the dtype of each label that may be missing, in the last batch that had it."""


class MissingLabels(ABC):
    """Replaces missing labels before a loss sees them: masking the loss afterwards would leave NaN gradients.

    `specs` are all labels of a spec by name; `labels` are those that may be missing. `known` holds the shapes
    and dtypes that batches have shown, and is kept up to date.
    """

    full: Callable[..., Any]  # ``full(shape, value, dtype=dtype)`` returns an array of one value
    can_represent: Callable[[Any, float], bool]  # whether a dtype has a value, as a real one after rounding
    dtype_name: Callable[[Any], str]  # the name of a dtype, such as float32

    def __init__(self, specs: Mapping[str, LabelSpec], known: KnownLabels | None = None) -> None:
        self.labels = {name: label for name, label in specs.items() if is_missable(label)}
        masks = {label.missing for label in self.labels.values() if isinstance(label.missing, str)} - {NAN}
        self._optional = list(dict.fromkeys([*self.labels, *sorted(masks)]))
        self._known: KnownLabels = {} if known is None else known

    @abstractmethod
    def constant(self, values: Any, number: int) -> Any:
        """Return an array of the shape of `values`, of 0 or 1."""

    @abstractmethod
    def spread(self, column: Any, values: Any) -> Any:
        """Return an array with one number a sample in the shape of `values`."""

    @abstractmethod
    def masked(self, values: Any, present: Any, dtype: Any) -> tuple[Any, Any]:
        """Return values of this dtype, with 0 where none is present, and `present` in float32."""

    def replace(self, batch: Any, target: Callable[[str, Any], Any]) -> None:
        """Put 0 in place of a batch's missing values, and add slots that say what is present.

        ``target(name, dtype)`` returns the dtype to which a label is then cast; None if its own is fine.
        """
        for _, slots, _ in batch.devices():
            for name, label in self.labels.items():
                if (values := slots.get(name)) is not None:  # labels may be left out when predicting
                    dtype = target(name, values.dtype) or values.dtype
                    slots[name], slots[presence(name)] = self.masked(
                        values, self._present(label, slots), dtype
                    )

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
        missing = self.labels[name].missing if name in self.labels else None
        value = math.nan if missing == NAN else missing
        if isinstance(value, (str, type(None))) or self.can_represent(dtype, value):
            return None
        lacks = "NaN" if missing == NAN else f"{value:g}"
        return (
            f'the label "{name}" is {self.dtype_name(dtype)}, which has no {lacks}; give floats, or missing= '
            "another value"
        )

    def rows(self, name: str, size: int, shape: Shape, dtype: Any) -> Any:
        """Return a label's array for `size` samples that lack it, like a batch of this shape and dtype."""
        missing: Any = self.labels[name].missing if name in self.labels else 0
        value = {NAN: math.nan}.get(missing, 0) if isinstance(missing, str) else missing
        return self.full((size, *shape[1:]), value, dtype=dtype)

    def _present(self, label: LabelSpec, slots: Mapping[str, Any]) -> Any:
        """Return where a label is present, in its shape; raises DataError if a mask does not fit it."""
        values, missing = slots[label.name], label.missing
        if missing == NAN:
            return values == values
        if not isinstance(missing, str):
            if missing is not None and self.can_represent(values.dtype, missing):
                return values != missing
            return self.constant(values, 1)  # libraries would round `missing`, and find another number
        mask, shape = slots[missing], values.shape
        if mask is None:  # of a batch that nothing but predictions use
            return self.constant(values, 0)
        if math.prod(mask.shape) == math.prod(shape):
            return (mask != 0).reshape(shape)
        if math.prod(mask.shape) == shape[0]:  # a number per sample holds for all values of the sample
            return self.spread((mask != 0).reshape((-1, *[1] * (len(shape) - 1))), values)
        raise DataError(
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

    `terms` are the losses that take weights, by slot. `balanced` holds the weights that were counted; until
    then, they are 1, which `log_once` logs.
    """

    def __init__(
        self, spec: TaskSpec, real: Any, balanced: BalancedWeights, log_once: Callable[[str], None]
    ) -> None:
        self.terms = {term.weights.name: term for term in spec.terms if term.weights is not None}
        self._real, self._balanced, self._log_once = real, balanced, log_once
        self._tables: dict[Any, Any] = {}  # by their values and device

    @abstractmethod
    def weights_of(self, term: Term, slots: Mapping[str, Any], size: int, axis: int) -> Any:
        """Return the weights of a loss's values."""

    @abstractmethod
    def new_table(self, weights: tuple[float, ...], device: Any) -> Any:
        """Return weights of classes as an array of dtype `real`."""

    def add(self, batch: Any) -> None:
        """Add the weights to a batch; None where it lacks what they are made from.

        Raises DataError if the weights of samples fit neither the samples nor the label.
        """
        for _, slots, size in batch.devices():
            for name, term in self.terms.items():
                taken = [*(ref.name for ref in term.labels), *listed(term.spec.sample_weight)]
                lacks = any(slots.get(slot) is None for slot in taken)
                slots[name] = None if lacks else self.weights_of(term, slots, size, batch.axis)

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


class CarriedState(ABC):
    """The outputs of a stage's last batch that are inputs of the next one, on each device, without gradients.

    `shapes` are the shapes of these slots, with 0 for the number of samples; `dtype` is that of the net.
    """

    equal_batches: str  # the option of a loader that makes all batches equally large

    def __init__(self, shapes: Mapping[str, Shape], devices: Sequence[Any], dtype: Any) -> None:
        self._shapes, self._devices, self._dtype = shapes, list(devices), dtype
        self._arrays: dict[Any, dict[str, Any]] = {}  # by device

    @abstractmethod
    def zeros(self, shape: Shape, device: Any) -> Any:
        """Return an array of zeros."""

    @abstractmethod
    def copied(self, array: Any, device: Any) -> Any:
        """Return a copy of an array on a device, without its gradients."""

    def reset(self) -> None:
        """Begin with zeros again."""
        self._arrays = {}

    def fill_in(self, batch: Any) -> None:
        """Add the state to a batch's slots; raises DataError if their numbers of samples differ."""
        for device, slots, size in batch.devices():
            before = self._arrays.get(device)
            for name, shape in self._shapes.items():
                wanted = tuple(n or size for n in shape)
                slots[name] = self.zeros(wanted, device) if before is None else before[name]
                if slots[name].shape != wanted:
                    raise DataError(
                        f"state: {device} gets {size} samples of a batch, but the state of the previous "
                        f"batch has {slots[name].shape[shape.index(0)]}; make all batches equally large: "
                        f"{self.equal_batches}"
                    )

    def keep(self, batch: Any, outputs: Sequence[Mapping[str, Any]]) -> None:
        """Remember the outputs of a batch; raises SpecError if one does not have the shape of its slot."""
        for (device, slots, _), arrays in zip(batch.devices(), outputs):
            for name in self._shapes:
                if slots[name] is None or arrays[name].shape != slots[name].shape:
                    raise SpecError(
                        f'state: "{name}" is {describe.array(slots[name])} as an input, but the output '
                        f'"{name}" is {describe.array(arrays[name])}; declare the shape of the output, with '
                        "0 for the number of samples"
                    )
            # copied, because an output that is a parameter changes when that is updated
            self._arrays[device] = {name: self.copied(arrays[name], device) for name in self._shapes}

    def state(self) -> list[dict[str, Any]]:
        """Return the state of each device that has one, for a checkpoint."""
        return [self._arrays[device] for device in self._devices if device in self._arrays]

    def load(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Restore what :meth:`state` returned."""
        self._arrays = {
            device: {name: self.copied(array, device) for name, array in arrays.items()}
            for device, arrays in zip(self._devices, state)
        }
