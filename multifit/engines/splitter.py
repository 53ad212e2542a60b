"""Name and check the arrays of raw batches, of one loader or of several: what all engines have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..sampling import TaskBatch
from ..spec import TaskSpec
from ..spec.checks import describe
from ..spec.checks.data import batch_axis_problems, bind_slots, form_problems, is_masked, slot_problems
from ..spec.terms import TaskSlots
from ..utils.errors import Problem, raise_problems
from ..utils.protocols import Shape
from ..utils.text import quoted
from .added_slots import KnownLabels, MissingLabels
from .batch import CurrentShare, Shards, arrays_in, names_in, sliced

MAX_SIGNATURES = 50  # that are remembered; with sequences of many lengths, there may be more

Signatures = list[dict[str, "tuple[Shape, Any] | None"]]
"""The shape and the dtype of each slot of batches, after casting; None for a label that is missing."""


@dataclass
class Seen:
    """What is known of the batches of a stage, which its splitters keep up to date.

    Parameters
    ----------
    signatures : list of dict
        The :data:`Signatures` of the stage's last batches, at most `MAX_SIGNATURES`.
    before : sequence of list of dict
        Those of batches of the same slots, in whichever stage.
    known : dict
        The shapes and dtypes of labels that may be missing, from the last batch that had them.
    casts : dict
        The dtypes of slots that net or losses cannot take as they are; the check of the first batch adds to
        it.
    current : CurrentShare
        The part of the batch that was read last which belongs to this process.
    """

    signatures: Signatures = field(default_factory=list)
    before: Sequence[Signatures] = ()
    known: KnownLabels = field(default_factory=dict)
    casts: Mapping[str, Any] = field(default_factory=dict)
    current: CurrentShare = field(default_factory=CurrentShare)


class Splitter(ABC):
    """Names, checks, casts and places the arrays of raw batches, for one TaskSpec.

    A batch is checked only if its shapes and dtypes are new.

    Parameters
    ----------
    spec : TaskSpec
        Its slots are filled.
    devices : list
        Where arrays go: the samples are divided among them.
    real : dtype
        That of the net's parameters: inputs and labels that are real numbers are cast to it.
    log_once : callable
        Called with a line to log, once for each slot that is cast.
    seen : Seen, optional
        What is known of the batches.
    labels : bool
        Whether batches must have labels, and the form of the first batch.
    batch_axis : int
        The axis of the samples in all slots.
    slots : mapping of str to str, optional
        The slots by the names in a batch, if it lacks some slots or names them differently.
    changes : sequence of callable
        Called with each batch on the devices, to change its slots in place.
    """

    user_code: Callable[..., AbstractContextManager[None]]  # notes on the errors of the user's functions
    missing_labels: Callable[..., MissingLabels]
    as_array: Callable[[Any], Any]  # an array-like of whatever library as one that can be placed
    samples: Callable[[Any, slice, int], Any] = staticmethod(sliced)
    concatenate: Callable[[Sequence[Any], int], Any]  # along an axis, in the common dtype
    common_dtype: Callable[[Sequence[Any]], Any]  # which holds the numbers of all arrays
    dtype_of: Callable[[str], Any] = staticmethod(str)  # the dtype of this name, as labels declare it
    known_as: Callable[[Any], Any]  # a dtype as it stands in signatures

    def __init__(
        self,
        spec: TaskSpec,
        devices: Sequence[Any],
        real: Any,
        log_once: Callable[[str], None],
        seen: Seen | None = None,
        *,
        labels: bool = True,
        batch_axis: int = 0,
        slots: TaskSlots | None = None,
        changes: Sequence[Callable[[Any], object]] = (),
    ) -> None:
        self.spec, self.devices, self.real, self._log_once = spec, list(devices), real, log_once
        self.seen = Seen() if seen is None else seen
        self.labels, self.batch_axis = labels, batch_axis
        self.missing = self.missing_labels(spec.label_specs, self.seen.known)
        self.dtypes = {
            name: self.dtype_of(each.dtype) for name, each in spec.label_specs.items() if each.dtype
        }
        self._checked: set[tuple[Any, ...]] = set()
        self._first: dict[str, Any] = {}
        self._slots = {name: name for name in spec.batch or ()} if slots is None else slots
        self._order = list(self._slots.values())
        self._inputs = [name for name in spec.inputs if name in self._order]
        self._inputs_alone = {name for name, slot in self._slots.items() if slot in self._inputs}
        self.absent = frozenset(() if slots is None else spec.slot_names) - frozenset(self._order)
        self.changes = [
            *([self._complete] if self.absent else ()),
            *([partial(self.missing.replace, target=self.target)] if self.missing.labels else ()),
            *changes,
        ]

    @abstractmethod
    def split(self, raw: Any) -> Any:
        """Return the batch, named, cast and placed; `raw` is None if this process has no samples of it.

        Raises DataError if slots or dtypes are not as declared.
        """

    @abstractmethod
    def distribute(self, raw: Any, parts: Sequence[Mapping[str, Any]]) -> Any:
        """Place named arrays on the devices, and change the batch: add slots, and call the handlers."""

    @abstractmethod
    def target(self, name: str, dtype: Any) -> Any:
        """Return the dtype to which a slot of this dtype is cast; None if it is fine."""

    def arrays_in(self, unnamed: Any) -> dict[str, Any] | list[Any]:
        """Return the arrays of a raw batch, by name or in order."""
        return arrays_in(unnamed, self.batch_axis, self.as_array, self.samples, self.concatenate)

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
            flat = {self._slots.get(name, name): array for name, array in flat.items()}
        named, problems = bind_slots(self._order, self._inputs, flat, self.labels, self.spec.state)
        arrays = {name: array for name, array in named.items() if name in self.spec.slot_names}
        if not problems and self.labels and self.missing.labels:
            arrays, problems = self.missing.fill_in(arrays, self.batch_axis)
        form = len(self.seen.casts), *map(_kind, arrays.values())
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
        known = [self.seen.signatures] if self.labels else self.seen.before
        before = [batches[-1].get(name) for batches in known if batches]
        return any(slot is not None and slot[1] == self.real for slot in before)

    def _are_slots(self, names: set[str]) -> bool:
        """Whether the arrays of a batch are named after its slots; an iterator's default names are not."""
        return names == self._slots.keys() or (not self.labels and names == self._inputs_alone)

    def positions(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> list[tuple[str, int]]:
        """Return the slot and the position of each array of a batch, for later ones of its form.

        It is empty if an array is twice in the batch, as it may be two arrays later.
        """
        places = {id(array): i for i, array in enumerate(arrays)}
        if len(places) < len(arrays) or any(id(array) not in places for array in named.values()):
            return []
        return [(name, places[id(array)]) for name, array in named.items()]

    def _complete(self, batch: Any) -> None:
        """Add the slots that a batch lacks, as None, in the order of the spec."""
        batch.map_slots(lambda slots: {name: slots.get(name) for name in self.spec.slot_names})

    def _known_shapes(self) -> dict[str, Shape]:
        """Return the shapes of slots in the last batches before, for batches that have no first one."""
        known = [signature for batches in self.seen.before for signature in batches[-1:]]
        return {name: slot[0] for signature in known for name, slot in signature.items() if slot is not None}

    def _remember(self, arrays: Mapping[str, Any]) -> None:
        """Append the signature of a batch, then log which of its slots are cast."""
        targets = {n: None if a is None else self.target(n, a.dtype) for n, a in arrays.items()}
        signature = {
            name: None if array is None else (tuple(array.shape), self.known_as(targets[name] or array.dtype))
            for name, array in arrays.items()
        }
        for name, target in targets.items():
            if target is not None and name not in self.dtypes:
                before, after = map(self.missing.dtype_name, (arrays[name].dtype, target))
                self._log_once(cast_line(name, before, after))
        signatures = self.seen.signatures
        if signature in signatures:
            signatures.remove(signature)
        signatures.append(signature)
        del signatures[:-MAX_SIGNATURES]


class TaskSplitter:
    """Splits the batches of several loaders: one loader's at a time, or one of each, joined into one batch.

    `whole` splits the joined batches; `splitters` split those of each loader, by its name.
    """

    def __init__(self, whole: Splitter, splitters: Mapping[str, Splitter]) -> None:
        self._whole, self._splitters = whole, splitters

    def split(self, raw: TaskBatch) -> Any:
        """Return the batch, named, cast and placed; raises DataError if slots or dtypes are wrong."""
        if len(raw.batches) == 1:
            [(task, batch)] = raw.batches.items()
            return self._splitters[task].split(batch)
        parts, problems = self.name_arrays(raw)
        raise_problems(problems)
        return self.distribute(raw, parts)

    def name_arrays(self, raw: TaskBatch) -> tuple[list[dict[str, Any]], list[Problem]]:
        """Return the arrays of a raw batch by slot, not placed yet, and the problems found."""
        named: dict[str, list[dict[str, Any]]] = {}
        problems: list[Problem] = []
        for task, batch in raw.batches.items():
            named[task], wrong = self._splitters[task].name_arrays(batch)
            problems += wrong
        if len(raw.batches) == 1 or problems:
            return next(iter(named.values())), problems
        joined, problems = self.join({task: parts[0] for task, parts in named.items()})
        if problems:
            return [], problems
        arrays, problems = self._whole.bind(joined)
        return [arrays], problems

    def distribute(self, raw: TaskBatch, parts: Sequence[Mapping[str, Any]]) -> Any:
        """Place named arrays on the devices."""
        splitter = self._splitters[raw.name] if len(raw.batches) == 1 else self._whole
        return splitter.distribute(raw, parts)

    def join(self, parts: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Any], list[Problem]]:
        """Join each loader's slots into those of one batch; return these, and the problems found.

        If every loader has all inputs, the samples are concatenated in the order of the loaders, and labels
        that a loader lacks are missing for its samples. Otherwise no two loaders have the same slot, and the
        slots are put together.
        """
        whole = self._whole
        if not all(set(whole.spec.inputs) <= part.keys() for part in parts.values()):
            return {name: array for part in parts.values() for name, array in part.items()}, []
        slots: dict[str, Any] = {}
        problems: list[Problem] = []
        sizes = {
            task: next((len(array) for array in part.values() if array is not None), 0)
            for task, part in parts.items()
        }
        for name in dict.fromkeys(name for part in parts.values() for name in part):
            arrays = {task: part[name] for task, part in parts.items() if part.get(name) is not None}
            if not arrays:
                slots[name] = None
                continue
            dtype, shape = whole.common_dtype([*arrays.values()]), next(iter(arrays.values())).shape
            if len({array.shape[1:] for array in arrays.values()}) > 1:
                shapes = (f"{describe.array(array)} of {quoted([task])}" for task, array in arrays.items())
                message = (
                    f'the slot "{name}" cannot be joined in one batch: {", ".join(shapes)}; give samples of '
                    "one shape, or let the loaders take turns, as with Proportional()"
                )
                problems.append(Problem("data", message))
            elif len(arrays) < len(parts) and (why := whole.missing.problem_of(name, dtype)):
                problems.append(Problem("data", f"{why}: samples of other loaders lack it"))
            else:
                missing = partial(whole.missing.rows, name, shape=shape, dtype=dtype)
                rows = [arrays[task] if task in arrays else missing(size) for task, size in sizes.items()]
                slots[name] = whole.concatenate(rows, 0)
        return slots, problems


def cast_line(name: str, before: str, after: str) -> str:
    """Return what is logged of a slot that is cast from one dtype to another."""
    return f'the slot "{name}" is {before} and is cast to {after}, batch by batch'


def _kind(array: Any) -> tuple[Any, ...]:
    """Return what the checks of an array depend on."""
    return getattr(array, "shape", None), getattr(array, "dtype", None), is_masked(array)
