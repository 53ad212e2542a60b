"""Names, references to outputs and slots, and the parsed declarations, in which every name is resolved."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from ..utils.protocols import Slots
from ..utils.text import nearest, quoted, shown, suggest
from .specs import LabelSpec, LossSpec, MetricSpec

OUTPUTS = "outputs"
LABELS = "labels"  # all slots of the batch, as losses and metrics may take inputs as labels
LOSSES = "losses"
SINGULAR = {OUTPUTS: "output", LABELS: "label", LOSSES: "loss"}
PLURAL = {OUTPUTS: "outputs", LABELS: "labels and inputs", LOSSES: "losses"}

Tree = tuple[Any, ...]  # names, nested like the net's outputs; `...` may be the last item of any level

NAN = "nan"  # of LabelSpec.missing

PRINTABLE = "of 1 to 200 printable characters"


@dataclass(frozen=True)
class Ref:
    """A reference to an output of the net (`space` is "outputs") or to a slot of the batch ("labels")."""

    space: str
    name: str

    def __str__(self) -> str:
        return f"{self.space}.{self.name}"


def is_name(value: object) -> bool:
    """Return whether `value` can be a name, which appears in messages, tables, plots and files."""
    return isinstance(value, str) and 1 <= len(value) <= 200 and value.isprintable()


def leaves(tree: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Yield ``(path, leaf)`` of nested tuples and lists in order; `path` holds the indices of the leaf."""
    if isinstance(tree, (list, tuple)):
        for i, item in enumerate(tree):
            yield from leaves(item, (*path, i))
    else:
        yield path, tree


def listed(value: Any) -> tuple[str, ...]:
    """Return a name, several names or None as a tuple of names."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def bare_slots(declared: Iterable[Any], slots: Collection[str]) -> tuple[Any, ...]:
    """Return the names of slots without the prefix ``labels.``, and all other values as they are."""
    short = {f"{LABELS}.{slot}": slot for slot in slots}
    return tuple(short.get(name, name) if isinstance(name, str) else name for name in declared)


def resolve(name: object, spaces: Mapping[str, Sequence[str]]) -> tuple[list[Ref], str | None]:
    """Resolve ``digit``, ``outputs.digit`` or ``labels.digit`` among the valid names of each name space.

    Returns all matches, and an error message if there are none. The nearest valid name then counts as the
    match, so that a typo is reported only once.
    """
    if not isinstance(name, str):
        return [], f"{shown(name)} is not a name; {_valid(spaces)}"
    for space, valid in spaces.items():
        if name.startswith(space + ".") and name[len(space) + 1 :] in valid:
            return [Ref(space, name[len(space) + 1 :])], None
    refs = [Ref(space, name) for space, valid in spaces.items() if name in valid]
    if refs:
        return refs, None
    everything = _everything(spaces)
    near = nearest(name, everything)
    guesses = [Ref(space, near) for space, valid in spaces.items() if near is not None and near in valid]
    kind = " or ".join(SINGULAR[space] for space in spaces)
    return guesses[:1], f"there is no {kind} {quoted([name])}{suggest(name, everything)}; {_valid(spaces)}"


def _everything(spaces: Mapping[str, Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(name for valid in spaces.values() for name in valid))


def _valid(spaces: Mapping[str, Sequence[str]]) -> str:
    return f"{', '.join(PLURAL[space] for space in spaces)} are {quoted(_everything(spaces))}"


MULTI_BOX = "gluoncv.loss.SSDMultiBoxLoss"


def is_multi_box(fn: object) -> bool:
    """Whether a loss is gluoncv's for SSD; a subclass may compute anything."""
    return f"{type(fn).__module__}.{type(fn).__qualname__}" == MULTI_BOX


@dataclass(frozen=True)
class MatchedAnchors:
    """What gluoncv's SSD loss is divided by: the anchors in a batch that are matched with an object.

    If none is, the loss is divided by `least`.
    """

    slot: str
    least: int

    def __call__(self, slots: Slots) -> Any:
        """Return 1 for each anchor of a device that is matched, else 0."""
        return slots[self.slot] > 0  # type: ignore[operator]


@dataclass(frozen=True)
class Taker:
    """A loss or a metric with its arguments; both take outputs and slots."""

    field: ClassVar[str]  # the field of the TaskSpec that declares it
    key: str
    spec: LossSpec | MetricSpec
    args: tuple[Ref, ...]
    present: tuple[Ref, ...] = ()  # for labels that may be missing: slots that say where they are present
    optional: frozenset[str] = frozenset()  # slots that some batches lack; it skips these batches
    weights: Ref | None = None  # the slot with a loss's weights of classes and samples, if it declares any

    @property
    def refs(self) -> tuple[Ref, ...]:
        """Everything that it reads."""
        return (*self.args, *self.present, *([self.weights] if self.weights else []))

    @property
    def where(self) -> str:
        """Its name in messages."""
        return f'{self.field}["{self.key}"]'

    @property
    def outputs(self) -> list[Ref]:
        """The arguments that are outputs."""
        return [ref for ref in self.args if ref.space == OUTPUTS]

    @property
    def labels(self) -> list[Ref]:
        """The arguments that are slots."""
        return [ref for ref in self.args if ref.space == LABELS]

    def has_slots(self, arrays: Mapping[Ref, Any]) -> bool:
        """Whether a batch has the slots that it takes, among those that some batches lack."""
        return all(arrays.get(Ref(LABELS, name)) is not None for name in self.optional)


@dataclass(frozen=True)
class Term(Taker):
    """A term of the objective: one loss with its arguments."""

    field = "losses"
    spec: LossSpec
    parts: tuple[str, ...] = ("",)  # names of what it returns; one empty name for a single array
    minimized: int = 0  # index of the part that enters the objective

    @property
    def counts_samples(self) -> bool:
        """Whether its normalizer is the number of samples, in every batch."""
        return self.spec.normalize_by is None and not self.present and not self.optional

    @property
    def trainers(self) -> tuple[str, ...]:
        """The trainers whose parameters it trains; empty if it trains all parameters."""
        return listed(self.spec.trainers)

    @property
    def figures(self) -> list[str]:
        """Names of its figures: the loss, then its parts."""
        return [self.key, *(f"{self.key}.{part}" for part in self.parts if part)]


@dataclass(frozen=True)
class MetricTerm(Taker):
    """A metric with its arguments."""

    field = "metrics"
    spec: MetricSpec
    losses: tuple[str, ...] = ()  # figures of losses that it is updated with in place of outputs


Declared = TypeVar("Declared", bound="Declarations")
READ_ONLY = "losses", "metrics", "label_specs", "state"


@dataclass(frozen=True, eq=False)
class Declarations:
    """The fields of a :class:`TaskSpec`, each in one form, and its losses and metrics with resolved names."""

    outputs: Tree  # "..." may be the last item of any level
    labels: tuple[str, ...]
    losses: Mapping[str, LossSpec]
    metrics: Mapping[str, MetricSpec]
    inputs: tuple[str, ...]
    batch: tuple[str, ...]  # the order of the slots in a batch
    unused: tuple[str, ...]
    forward: Callable[..., Any] | None
    batch_fn: Callable[[Any], Mapping[str, Any]] | None
    evaluate: Declarations | None  # replaces this one in evaluation and prediction
    name: str | None
    label_specs: Mapping[str, LabelSpec]
    terms: tuple[Term, ...]
    metric_terms: tuple[MetricTerm, ...]
    state: Mapping[str, tuple[int, ...]]  # inputs that are outputs of the previous batch, and their shapes
    parts: Mapping[str, Mapping[str, str]]  # of a combined spec: each part's batch slots, old name to new
    restricted: bool = False  # whether tasks were left out, whose parameters are then frozen

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs, flat, in order, without ``...``."""
        return tuple(name for _, name in leaves(self.outputs) if name is not Ellipsis)

    @property
    def slot_names(self) -> tuple[str, ...]:
        """Names of all slots: the inputs, then the labels that are not inputs."""
        return tuple(dict.fromkeys([*self.inputs, *self.labels]))

    @property
    def takers(self) -> tuple[Taker, ...]:
        """Everything that takes outputs and slots: the losses, then the metrics."""
        return (*self.terms, *self.metric_terms)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for copies and pickles, of which read-only mappings can have none."""
        return {**self.__dict__, **{name: dict(self.__dict__[name]) for name in READ_ONLY}}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`__getstate__` returned."""
        read_only = {name: MappingProxyType(state[name]) for name in READ_ONLY}
        self.__dict__.update({**state, **read_only})


def changed(declarations: Declared, **fields: Any) -> Declared:
    """Return a copy of the declarations with some fields replaced; nothing is checked."""
    declarations = copy.copy(declarations)
    for name, value in fields.items():
        object.__setattr__(declarations, name, value)
    return declarations


TaskSlots = Mapping[str, str]
"""The names of a loader's slots in the spec, by their names in the loader's batches, in order."""


def task_slots(spec: Declared) -> dict[str, TaskSlots]:
    """Return, for each task, the slots of its batches, in their order if a batch is a list.

    The tasks of a combined spec are its parts. The tasks of any other spec are its losses, or its metrics if
    it has no losses; a task's batches then have all inputs, and the labels that its loss or metric takes.
    """
    if spec.parts:
        return dict(spec.parts)
    takers: tuple[Taker, ...] = spec.terms or spec.metric_terms
    return {
        taker.key: {name: name for name in spec.batch if name in spec.inputs or name in slots_of(spec, taker)}
        for taker in takers
    }


def with_optional(spec: Declared, lacking: Collection[str]) -> Declared:
    """Return a spec in which `optional` of each loss and metric holds the slots that some batches lack."""
    if not lacking:
        return spec
    terms = [replace(term, optional=slots_of(spec, term).intersection(lacking)) for term in spec.terms]
    of_losses = {figure: term.optional for term in terms for figure in term.figures}
    metrics = [
        replace(
            metric,
            optional=slots_of(spec, metric)
            .intersection(lacking)
            .union(*(of_losses[figure] for figure in metric.losses)),
        )
        for metric in spec.metric_terms
    ]
    return changed(spec, terms=tuple(terms), metric_terms=tuple(metrics))


def slots_of(spec: Declared, taker: Taker) -> frozenset[str]:
    """Return the names of all slots that a loss or metric takes, including masks and normalizers."""
    taken = {ref.name for ref in taker.labels}
    others = (getattr(taker.spec, name, None) for name in ("normalize_by", "sample_weight"))
    taken |= {other for other in others if isinstance(other, str)}
    masks = {label.missing for name, label in spec.label_specs.items() if name in taken}
    return frozenset(taken | {mask for mask in masks if isinstance(mask, str) and mask != NAN})


def named_parts(term: Term, values: Sequence[Any]) -> dict[str, Any]:
    """Return a term's parts by figure; ``<loss>`` is the part that is minimised."""
    parts = {f"{term.key}.{part}": value for part, value in zip(term.parts, values) if part}
    return {term.key: values[term.minimized], **parts}


def by_reference(outputs: Mapping[str, Any], slots: Mapping[str, Any]) -> dict[Ref, Any]:
    """Return one device's outputs and slots in one mapping."""
    arrays = {Ref(OUTPUTS, name): array for name, array in outputs.items()}
    arrays.update({Ref(LABELS, name): array for name, array in slots.items()})
    return arrays
