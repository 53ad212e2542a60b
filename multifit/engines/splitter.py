"""Name and check the arrays of raw batches: what the splitters of all engines have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ..checks import batch_axis_problems, bind_slots, form_problems, is_masked, slot_problems
from ..errors import Problem
from ..protocols import Shape
from ..spec import TaskSpec
from ..spec.terms import TaskSlots
from .raw_batches import names_in
from .shares import CurrentShare, Shards

MAX_SIGNATURES = 50  # that are remembered; with sequences of many lengths, there may be more

Signatures = list[dict[str, "tuple[Shape, Any] | None"]]
"""The shape and the dtype of each slot of batches, after casting; None for a label that is missing."""


class Splitter(ABC):
    """Names and checks the arrays of raw batches, for one TaskSpec.

    A batch is checked only if its shapes and dtypes are new. With `labels`, it must have the form of the
    first batch; without, its labels may be left out. `log_once` is called with a line to log, once for each
    slot that is cast. :data:`Signatures` of new batches are appended to `signatures`, which keeps the last
    `MAX_SIGNATURES`. `real` is the dtype of the net's parameters: inputs and labels that are real numbers are
    cast to it. `current` says which part of a batch belongs to this process. `own` maps the names in a batch
    to slots, if the batch lacks some slots or names them differently. `before` are the signatures of batches
    of the same slots, in whichever stage. `casts` are the dtypes of slots that net or losses cannot take as
    they are; the check of the first batch adds to it.

    `declared` are the dtypes of labels that declare one, and `missing` replaces labels that may be missing.
    """

    user_code: Callable[..., AbstractContextManager[None]]  # notes on the errors of the user's functions

    def __init__(
        self,
        spec: TaskSpec,
        log_once: Callable[[str], None],
        declared: Mapping[str, Any],
        missing: Any,
        real: Any,
        labels: bool = True,
        batch_axis: int = 0,
        signatures: Signatures | None = None,
        current: CurrentShare | None = None,
        own: TaskSlots | None = None,
        before: Sequence[Signatures] = (),
        casts: Mapping[str, Any] | None = None,
    ) -> None:
        self.spec, self._log_once, self.labels, self.batch_axis = spec, log_once, labels, batch_axis
        self.signatures: Signatures = [] if signatures is None else signatures
        self._real, self._before, self._casts = real, before, {} if casts is None else casts
        self._dtypes, self._missing = declared, missing
        self._checked: set[tuple[Any, ...]] = set()
        self._first: dict[str, Any] = {}
        self._current = CurrentShare() if current is None else current
        self._own = {name: name for name in spec.batch or ()} if own is None else own
        self._order = list(self._own.values())
        self._inputs = [name for name in spec.inputs if name in self._order]
        self._inputs_alone = {name for name, slot in self._own.items() if slot in self._inputs}
        self._absent = frozenset(() if own is None else spec.slot_names) - frozenset(self._order)

    @abstractmethod
    def arrays_in(self, unnamed: Any) -> dict[str, Any] | list[Any]:
        """Return the arrays of a raw batch, by name or in order."""

    @abstractmethod
    def target(self, name: str, dtype: Any) -> Any:
        """Return the dtype to which a slot of this dtype is cast; None if it is fine."""

    @abstractmethod
    def dtype_name(self, dtype: Any) -> str:
        """Return the name of a dtype, such as float32."""

    @abstractmethod
    def known_as(self, dtype: Any) -> Any:
        """Return what stands for a dtype in signatures."""

    def name_arrays(self, raw: Any) -> tuple[list[dict[str, Any]], list[Problem]]:
        """Return the arrays of a raw batch by slot, not placed yet, and the problems found.

        The arrays are a list of one part, or, if the batch is split already, of several.
        """
        unnamed = raw
        if self.spec.batch_fn is not None:
            with self.user_code(lambda: "batch_fn", ("batch", raw)):
                unnamed = self.spec.batch_fn(raw)
            if unnamed is None:
                return [], [Problem("data", "batch_fn returns None; let it return the batch")]
        if isinstance(unnamed, Shards):
            return self.name_parts(unnamed)
        arrays, problems = self.bind(unnamed)
        return [arrays], problems

    def name_parts(self, parts: Sequence[Any]) -> tuple[list[dict[str, Any]], list[Problem]]:
        """Do what :meth:`name_arrays` does for a batch that is split already."""
        named = [self.bind(part) for part in parts]
        return [arrays for arrays, _ in named], [each for _, problems in named for each in problems]

    def bind(self, unnamed: Any) -> tuple[dict[str, Any], list[Problem]]:
        """Return the arrays of a batch, or of a part of one, by slot, and the problems found.

        `unnamed` is the raw batch, or what `batch_fn` returned for it.
        """
        flat = self.arrays_in(unnamed)
        names = names_in(unnamed)
        if len(names) == len(flat) and self._are_slots(set(names)):
            flat = dict(zip(names, flat))
        if isinstance(flat, dict):
            flat = {self._own.get(name, name): array for name, array in flat.items()}
        named, problems = bind_slots(self._order, self._inputs, flat, self.labels, self.spec.state)
        arrays = {name: array for name, array in named.items() if name in self.spec.slot_names}
        if not problems and self.labels and self._missing:
            arrays, problems = self._missing.fill_in(arrays, self.batch_axis)
        form = len(self._casts), *map(_kind, arrays.values())
        if not problems and form not in self._checked:
            problems = slot_problems(arrays, self.batch_axis)
            if not problems and self.labels:
                problems = form_problems(arrays, self.spec.inputs, self._first)
            elif not problems:
                problems = batch_axis_problems(arrays, self._known_shapes())
            if not problems:
                self._checked.add(form)
                self._remember(arrays)
        return arrays, problems

    def was_real(self, name: str) -> bool:
        """Whether a slot had the dtype of the net in the batch before.

        Net, losses and metrics have run with that, and may not run with whole numbers.
        """
        known = [self.signatures] if self.labels else self._before
        before = [batches[-1].get(name) for batches in known if batches]
        return any(slot is not None and slot[1] == self._real for slot in before)

    def _are_slots(self, names: set[str]) -> bool:
        """Whether the arrays of a batch are named after its slots; an iterator's default names are not."""
        return names == self._own.keys() or (not self.labels and names == self._inputs_alone)

    def _known_shapes(self) -> dict[str, Shape]:
        """Return the shapes of slots in the last batches before, for batches that have no first one."""
        known = [signature for batches in self._before for signature in batches[-1:]]
        return {name: slot[0] for signature in known for name, slot in signature.items() if slot is not None}

    def _remember(self, arrays: Mapping[str, Any]) -> None:
        """Append the signature of a batch, then log which of its slots are cast."""
        targets = {n: None if a is None else self.target(n, a.dtype) for n, a in arrays.items()}
        signature = {
            name: None if array is None else (tuple(array.shape), self.known_as(targets[name] or array.dtype))
            for name, array in arrays.items()
        }
        for name, target in targets.items():
            if target is not None and name not in self._dtypes:
                before, after = self.dtype_name(arrays[name].dtype), self.dtype_name(target)
                self._log_once(cast_line(name, before, after))
        if signature in self.signatures:
            self.signatures.remove(signature)
        self.signatures.append(signature)
        del self.signatures[:-MAX_SIGNATURES]


def cast_line(name: str, before: str, after: str) -> str:
    """Return what is logged of a slot that is cast from one dtype to another."""
    return f'the slot "{name}" is {before} and is cast to {after}, batch by batch'


def _kind(array: Any) -> tuple[Any, ...]:
    """Return what the checks of an array depend on."""
    return getattr(array, "shape", None), getattr(array, "dtype", None), is_masked(array)
