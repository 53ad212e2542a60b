"""Reading the fields of a TaskSpec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Iterator, TypeVar

from ..arguments import as_float, is_finite_number
from ..errors import quoted, shown, suggest
from .missing import missing_messages, with_presence
from .names import PRINTABLE, Tree, bare_slots, is_name, leaves, listed
from .resolution import resolve_terms
from .specs import LabelSpec, LossSpec, MetricSpec
from .state import parsed_state

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
