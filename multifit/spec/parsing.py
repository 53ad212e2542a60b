"""Reads the fields of a TaskSpec, and resolves names to what they mean."""

import numbers
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from ..utils.arguments import as_float, is_finite_number
from ..utils.text import quoted, shown, suggest
from .specs import LabelSpec, LossSpec, MetricSpec
from .terms import (
    LABELS,
    LOSSES,
    NAN,
    OUTPUTS,
    PLURAL,
    PRINTABLE,
    SINGULAR,
    Declarations,
    MatchedAnchors,
    MetricTerm,
    Ref,
    Term,
    Tree,
    bare_slots,
    is_multi_box,
    is_name,
    leaves,
    listed,
    resolve,
)


def presence(label: str) -> str:
    """Return the name of the slot that says where a label is present: 1 there, else 0."""
    return f"present.{label}"


def coverage(label: str) -> str:
    """Return the name of the figure that says how much of a label is present."""
    return f"coverage_{label}"


def with_presence(
    terms: Sequence[Term], metrics: Sequence[MetricTerm], labels: Mapping[str, LabelSpec]
) -> tuple[tuple[Term, ...], tuple[MetricTerm, ...]]:
    """Return the losses and metrics, each with the presence slots of its labels that may be missing."""
    terms = [replace(term, present=_present(term.args, labels, term.spec.fn)) for term in terms]
    of_losses = {figure: term.present for term in terms for figure in term.figures}
    known = []
    for metric in metrics:
        present = [
            *_present(metric.args, labels),
            *(ref for name in metric.losses for ref in of_losses[name]),
        ]
        known.append(replace(metric, present=tuple(dict.fromkeys(present))))
    return tuple(terms), tuple(known)


def is_missable(label: LabelSpec | None) -> bool:
    """Whether a label may be missing."""
    return label is not None and label.missing is not None


def _present(args: Sequence[Ref], labels: Mapping[str, LabelSpec], fn: object = None) -> tuple[Ref, ...]:
    """Return the presence slots of labels; one that is taken together with its mask needs none.

    For a loss `fn` of Gluon's, the mask is a weight, which does not say how many values there are.
    """
    names = dict.fromkeys(ref.name for ref in args if ref.space == LABELS)
    missing = {name: labels[name].missing for name in names if is_missable(labels.get(name))}
    masks = [] if type(fn).__module__ == "mxnet.gluon.loss" else list(names)
    return tuple(
        Ref(LABELS, presence(name))
        for name, mask in missing.items()
        if not (isinstance(mask, str) and mask in masks)
    )


def label_of(present: Ref) -> Ref:
    """Return the label of a presence slot."""
    return Ref(LABELS, present.name.partition(".")[2])


def missing_messages(label: LabelSpec, slots: Collection[str]) -> Iterator[str]:
    """Yield what is wrong with a label's `missing`; `slots` are all slots of a batch."""
    missing: Any = label.missing
    where = f'labels["{label.name}"]: missing'
    if isinstance(missing, str):
        masks = [name for name in slots if name != label.name]
        if missing != NAN and missing not in masks:
            near = suggest(missing, [NAN, *masks])
            yield f'{where} is {shown(missing)}{near}; valid are "nan", a number, or a slot ({quoted(masks)})'
    elif missing is not None and not is_finite_number(missing):
        yield f'{where} is {shown(missing)}; valid are "nan", a number, or the name of a slot'


Spaces = Mapping[str, Sequence[str]]


def resolve_terms(
    losses: Mapping[str, LossSpec],
    metrics: Mapping[str, MetricSpec],
    outputs: Sequence[str],
    slots: Sequence[str],
    labels: Sequence[str],
) -> tuple[tuple[Term, ...], tuple[MetricTerm, ...], list[str]]:
    """Return all losses and metrics with the names that could be resolved, and messages about the others.

    `slots` are the labels and the inputs.
    """
    messages: list[str] = []
    spaces = {OUTPUTS: outputs, LABELS: slots}
    terms = [_Resolver("losses", key, spaces, messages).loss(spec) for key, spec in losses.items()]
    spaces[LOSSES] = [figure for term in terms for figure in term.figures]
    only = {space: names for space, names in ((OUTPUTS, outputs), (LABELS, labels)) if len(names) == 1}
    metric_terms = [_Resolver("metrics", key, spaces, messages, only).metric(m) for key, m in metrics.items()]
    return tuple(terms), tuple(metric_terms), messages


class _Resolver:
    """Resolves the names of one loss or metric, and appends a message to `messages` for each problem."""

    def __init__(
        self, field: str, key: str, spaces: Spaces, messages: list[str], only: Spaces | None = None
    ) -> None:
        self.where, self.key, self.spaces, self.messages = f'{field}["{key}"]', key, spaces, messages
        self._only = only or {}  # the names to take where none is like the key

    def loss(self, spec: LossSpec) -> Term:
        """Return a loss with resolved arguments, a float as weight, and a slot's bare name as normalizer.

        A function as weight or normalizer stays as it is.
        """
        args = self._arguments(spec, False, (OUTPUTS,) if spec.fn is None else (OUTPUTS, LABELS))
        by, weight, by_sample = spec.normalize_by, spec.weight, spec.sample_weight
        if by is not None and not callable(by):
            by = next((ref.name for ref in self._refs(by, LABELS, field="normalize_by: ")), None)
        if by_sample is not None:
            by_sample = next((r.name for r in self._refs(by_sample, LABELS, field="sample_weight: ")), None)
        if by is None and is_multi_box(spec.fn) and len(args) == 4:
            by = MatchedAnchors(args[2].name, least=int(spec.fn._min_hard_negatives > 0))  # type: ignore
        if not callable(weight) and is_finite_number(weight):
            weight = float(weight)
        parts = tuple(part for part in listed(spec.returns) if isinstance(part, str)) or ("",)
        known = isinstance(spec.minimize, str) and spec.minimize in parts
        minimized = parts.index(spec.minimize) if known else 0
        is_weighted = spec.class_weights is not None or by_sample is not None
        weights = Ref(LABELS, f"weight.{self.key}") if is_weighted else None
        classes = _plain_weights(spec.class_weights)
        spec = replace(spec, weight=weight, normalize_by=by, sample_weight=by_sample, class_weights=classes)
        return Term(self.key, spec, args, parts=parts, minimized=minimized, weights=weights)

    def metric(self, spec: MetricSpec) -> MetricTerm:
        """Return a metric with resolved arguments and losses."""
        losses = [ref.name for name in listed(spec.losses) for ref in self._refs(name, LOSSES)]
        args: tuple[Ref, ...] = ()
        takes_losses = bool(listed(spec.losses))
        if not takes_losses or any(
            value is not None for value in (spec.outputs, spec.labels, spec.arguments)
        ):
            args = self._arguments(spec, takes_losses, (OUTPUTS, LABELS))
        if spec.sample_weight is not None:  # the last label
            args += tuple(self._refs(spec.sample_weight, LABELS, field="sample_weight: ")[:1])
        return MetricTerm(self.key, spec, args, losses=tuple(losses))

    def _arguments(
        self, spec: LossSpec | MetricSpec, takes_losses: bool, defaults: Sequence[str]
    ) -> tuple[Ref, ...]:
        known = len(self.messages)
        if spec.outputs is None and spec.labels is None:
            if spec.arguments is None:
                return self._named_like_key(defaults)
            args = self._in_order(spec.arguments, self.spaces)
        else:
            outputs = self.key if spec.outputs is None and not takes_losses else spec.outputs
            args = [ref for name in listed(outputs) for ref in self._refs(name, OUTPUTS)]
            args += [ref for name in listed(spec.labels) for ref in self._refs(name, LABELS)]
            if spec.arguments is not None and len(self.messages) == known:
                args = self._reordered(args, spec.arguments)
        if not args and not takes_losses and len(self.messages) == known:
            self._report("takes nothing; name what it takes with outputs= and labels=")
        return tuple(args)

    def _named_like_key(self, spaces: Sequence[str]) -> tuple[Ref, ...]:
        """Return the default arguments of a loss or metric: the output and the label named like its key."""
        names = dict.fromkeys(spaces, self.key)
        names.update(
            {
                space: self._only[space][0]
                for space in spaces
                if self.key not in self.spaces[space] and space in self._only
            }
        )
        missing = [space for space in spaces if names[space] not in self.spaces[space]]
        if missing:
            valid = "; ".join(f"{PLURAL[space]} are {quoted(self.spaces[space])}" for space in missing)
            near = suggest(self.key, [name for space in missing for name in self.spaces[space]])
            what = " and no ".join(SINGULAR[space] for space in missing)
            fields = " and ".join(f"{space}=" for space in missing)
            self._report(
                f'there is no {what} "{self.key}"{near}; {valid}; '
                f"declare it, or name what it takes with {fields}"
            )
        return tuple(Ref(space, names[space]) for space in spaces if space not in missing)

    def _in_order(self, arguments: Any, spaces: Spaces) -> list[Ref]:
        args: list[Ref] = []
        for name in listed(arguments):
            refs = self._refs(name, OUTPUTS, LABELS, within=spaces)
            if len(refs) > 1:
                qualified = " or ".join(f'"{ref}"' for ref in refs)
                self._report(f'"{name}" is an output and a label; write {qualified} in arguments')
            args += refs[:1]
        return args

    def _reordered(self, args: list[Ref], order: Any) -> list[Ref]:
        known = len(self.messages)
        taken = {space: [ref.name for ref in args if ref.space == space] for space in (OUTPUTS, LABELS)}
        ordered = self._in_order(order, taken)
        missing = ", ".join(f'"{ref}"' for ref in args if ref not in ordered)
        if missing and len(self.messages) == known:
            self._report(f"arguments= must name every output and label that it takes; {missing} missing")
        return args if missing else ordered

    def _refs(self, name: object, *spaces: str, field: str = "", within: Spaces | None = None) -> list[Ref]:
        valid = self.spaces if within is None else within
        refs, problem = resolve(name, {space: valid[space] for space in spaces})
        if problem:
            self._report(field + problem)
        return refs

    def _report(self, problem: str) -> None:
        self.messages.append(f"{self.where}: {problem}")


def _plain_weights(weights: Any) -> Any:
    """Return weights of classes with Python's own types, as far as they are numbers."""
    if isinstance(weights, Mapping):
        return {key: as_float(value) if is_finite_number(value) else value for key, value in weights.items()}
    if isinstance(weights, str) or not hasattr(weights, "__len__"):
        return weights
    return tuple(as_float(value) if is_finite_number(value) else value for value in weights)


EXAMPLE = 'such as {"hidden": (2, 0, 64)}, with 0 for the number of samples'


def parsed_state(value: Any) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    """Return the shape of each slot of the state, and what is wrong with the declared `value`."""
    if value is None:
        return {}, []
    if not isinstance(value, Mapping):
        return {}, [f"state: is {shown(value)}; give a dict of shapes by name, {EXAMPLE}"]
    valid = {name: tuple(map(int, shape)) for name, shape in value.items() if _is_shape(name, shape)}
    return valid, [
        f"state: {shown(name)} has the shape {shown(shape)}; give a tuple of whole numbers, {EXAMPLE}"
        for name, shape in value.items()
        if name not in valid
    ]


def state_messages(declarations: Declarations) -> Iterator[str]:
    """Yield which slots of the state are not inputs, are not returned by the net, or are in `batch`."""
    for name in declarations.state:
        for field, valid in (("inputs", declarations.inputs), ("outputs", declarations.output_names)):
            if name not in valid:
                yield (
                    f'state: "{name}" is not one of the {field}{suggest(name, valid)}; the net must take it '
                    f"as an input and return its new value as an output; {field} are {quoted(valid)}"
                )
        if name in declarations.batch:
            yield f'batch: "{name}" is carried from batch to batch; leave it out'


def _is_shape(name: object, shape: Any) -> bool:
    sizes = list(shape) if isinstance(shape, (list, tuple)) else []
    whole = all(isinstance(n, numbers.Integral) and not isinstance(n, bool) and int(n) >= 0 for n in sizes)
    return isinstance(name, str) and whole and sizes.count(0) == 1


DTYPES = ("float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool")

T = TypeVar("T", LossSpec, MetricSpec)


class FieldParser:
    """Parses the fields of a TaskSpec and collects what is wrong with them.

    The parsed fields are safe to work with: every name is a valid name, every number a Python number.
    `messages` are about names and fields that had to be dropped, `details` about everything else.
    `unresolved`, which is filled last, is about names that are referred to but not declared.
    """

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.details: list[str] = []
        self.unresolved: list[str] = []

    def fields(
        self,
        outputs: Any,
        labels: Any,
        losses: Any,
        metrics: Any,
        inputs: Any,
        batch: Any,
        unused: Any,
        needs_inputs: bool,
        state: Any = None,
    ) -> dict[str, Any]:
        """Return the declarations as a dict with the fields of :class:`Declarations` as keys."""
        label_specs = self._labels(labels)
        label_names = tuple(label.name for label in label_specs)
        tree, input_names = self._tree("outputs", outputs), self._names("inputs", inputs)
        unused_names = self._names("unused", unused)
        carried, messages = parsed_state(state)
        self.messages += messages
        output_names = tuple(leaf for _, leaf in leaves(tree) if leaf is not Ellipsis)
        self._require("outputs", output_names)
        self._require("inputs", input_names or not needs_inputs)
        slots = tuple(dict.fromkeys([*input_names, *label_names]))
        example = next(iter(output_names), "output")
        loss_specs = self._mapping("losses", losses, LossSpec, f'"{example}": ...')
        metric_specs = self._mapping("metrics", metrics, MetricSpec, '"accuracy": MetricSpec(...)')
        terms, metric_terms, self.unresolved = resolve_terms(
            loss_specs,
            metric_specs,
            output_names,
            tuple(dict.fromkeys([*label_names, *input_names])),
            label_names,
        )
        by_name = {label.name: label for label in label_specs}
        terms, metric_terms = with_presence(terms, metric_terms, by_name)
        self.unresolved += [m for label in label_specs for m in missing_messages(label, slots)]
        return {
            "outputs": tree,
            "labels": label_names,
            "losses": MappingProxyType(loss_specs),
            "metrics": MappingProxyType(metric_specs),
            "inputs": input_names,
            "batch": tuple(name for name in slots if name not in carried)
            if batch is None
            else bare_slots(self._names("batch", batch), slots),
            "unused": unused_names,
            "label_specs": MappingProxyType(by_name),
            "terms": terms,
            "metric_terms": metric_terms,
            "state": MappingProxyType(carried),
        }

    def _names(self, field: str, value: Any) -> tuple[str, ...]:
        """Return a name or a list of names as a tuple."""
        return tuple(name for name in self._items(field, value) if self._is_name(field, name))

    def _require(self, field: str, value: object) -> None:
        """Report an empty field, unless something else is wrong already."""
        if not value and not self.messages:
            self.messages.append(f"{field}: no name is given; name at least one")

    def _tree(self, field: str, value: Any) -> Tree:
        """Return names as nested tuples, with ``...`` at the end of any level; one name as a 1-tuple."""
        tree: list[Any] = []
        items = self._items(field, value)
        for i, item in enumerate(items):
            if isinstance(item, (list, tuple)):
                tree.append(self._tree(field, item))
            elif item is Ellipsis and i == len(items) - 1:
                tree.append(item)
            elif item is Ellipsis:
                self.details.append(
                    f'{field}: "..." must come last; it ignores whatever the net returns after the named ones'
                )
            elif self._is_name(field, item):
                tree.append(item)
        return tuple(tree)

    def _labels(self, value: Any) -> list[LabelSpec]:
        """Return names and LabelSpecs as LabelSpecs."""
        labels = []
        for item in self._items("labels", value):
            label = item if isinstance(item, LabelSpec) else LabelSpec(item)
            if self._is_name("labels", label.name):
                messages = list(_label_messages(label))
                self.details += messages
                valid = LabelSpec(label.name, missing=label.missing) if messages else label
                labels.append(_plain(valid))
        return labels

    def _mapping(self, field: str, value: Any, kind: type[T], example: str) -> dict[str, T]:
        """Return a dict of declarations by name; a bare loss or metric becomes a `kind`."""
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.messages.append(
                f"{field}: is {shown(value)}; give a dict by name, such as {field}={{{example}}}"
            )
            return {}
        named = {key: item for key, item in value.items() if self._is_name(field, key)}
        self.details += [
            f'{field}["{key}"]: is None; leave it out, or declare LossSpec(outputs=...), without a function, '
            "for an output that is the loss itself"
            for key, item in named.items()
            if item is None and kind is LossSpec
        ]
        return {key: item if isinstance(item, kind) else kind(item) for key, item in named.items()}

    def _items(self, field: str, value: Any) -> tuple[Any, ...]:
        if isinstance(value, (set, frozenset, Mapping)):
            self.messages.append(f"{field}: {shown(value)} is a {type(value).__name__}; give a list of names")
            return ()
        return listed(value)

    def _is_name(self, field: str, value: object) -> bool:
        if not is_name(value):
            self.messages.append(f"{field}: {shown(value)} is not a name; a name is a string {PRINTABLE}")
        return is_name(value)


def _label_messages(label: LabelSpec) -> Iterator[str]:
    where = f'labels["{label.name}"]'
    if label.dtype is not None and _dtype_name(label.dtype) not in DTYPES:
        near = suggest(label.dtype, DTYPES)
        yield f"{where}: dtype is {shown(label.dtype)}{near}; valid are {quoted(DTYPES)}"
    classes = label.classes
    if classes is not None and not (is_finite_number(classes) and classes == int(classes) >= 1):
        yield f"{where}: classes is {shown(classes)}; it must be a whole number of at least 1"
    ignore = label.ignore
    if ignore is not None and not is_finite_number(ignore):
        yield f'{where}: ignore is {shown(ignore)}; it must be a finite number, which means "no label"'


def _plain(label: LabelSpec) -> LabelSpec:
    """Return a valid LabelSpec with Python's own types."""
    dtype = None if label.dtype is None else _dtype_name(label.dtype)
    classes = None if label.classes is None else int(label.classes)
    ignore = label.ignore if isinstance(label.ignore, (int, float, type(None))) else float(label.ignore)
    missing = as_float(label.missing) if is_finite_number(label.missing) else label.missing
    return replace(label, dtype=dtype, classes=classes, ignore=ignore, missing=missing)


def _dtype_name(dtype: Any) -> str:
    # "float32", numpy.float32 and numpy.dtype("float32") all mean the same
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
    name = name or getattr(dtype, "__name__", None)
    return name if isinstance(name, str) else ""
