"""Reading the fields of a TaskSpec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Iterator, TypeVar

from ..arguments import is_number
from ..errors import names, shown
from .names import Tree, listed
from .specs import LabelSpec, LossSpec, MetricSpec

DTYPES = ("float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool")

T = TypeVar("T", LossSpec, MetricSpec)


class FieldParser:
    """Parses fields and collects what is wrong with them in `messages`.

    What it returns is safe to work with: names are strings that are not empty; everything else is left out.
    """

    def __init__(self) -> None:
        self.messages: list[str] = []

    def names(self, field: str, value: Any) -> tuple[str, ...]:
        """Return a name or a list of names as a tuple."""
        return tuple(name for name in self._items(field, value) if self._is_name(field, name))

    def require(self, field: str, value: object) -> None:
        """Report an empty field, unless something else is wrong already."""
        if not value and not self.messages:
            self.messages.append(f"{field}: no name is given; name at least one")

    def tree(self, field: str, value: Any) -> Tree:
        """Return names as nested tuples, with ``...`` at the end of any level; one name as a 1-tuple."""
        tree: list[Any] = []
        items = self._items(field, value)
        for i, item in enumerate(items):
            if isinstance(item, (list, tuple)):
                tree.append(self.tree(field, item))
            elif item is Ellipsis and i == len(items) - 1:
                tree.append(item)
            elif item is Ellipsis:
                self.messages.append(
                    f'{field}: "..." must come last; it ignores whatever the net returns after the named ones'
                )
            elif self._is_name(field, item):
                tree.append(item)
        return tuple(tree)

    def labels(self, value: Any) -> list[LabelSpec]:
        """Return names and LabelSpecs as LabelSpecs."""
        labels = []
        for item in self._items("labels", value):
            label = item if isinstance(item, LabelSpec) else LabelSpec(item)
            if self._is_name("labels", label.name):
                labels.append(label)
                self.messages += _label_messages(label)
        return labels

    def mapping(self, field: str, value: Any, kind: type[T], example: str) -> dict[str, T]:
        """Return a dict of declarations by name; a bare loss or metric becomes a `kind`."""
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.messages.append(
                f'{field}: is {shown(value)}; give a dict by name, such as {field}={{"{example}": ...}}'
            )
            return {}
        named = {key: item for key, item in value.items() if self._is_name(field, key)}
        return {key: item if isinstance(item, kind) else kind(item) for key, item in named.items()}

    def _items(self, field: str, value: Any) -> tuple[Any, ...]:
        if isinstance(value, (set, frozenset, Mapping)):
            self.messages.append(f"{field}: {shown(value)} is a {type(value).__name__}; give a list of names")
            return ()
        return listed(value)

    def _is_name(self, field: str, value: object) -> bool:
        if isinstance(value, str) and value:
            return True
        self.messages.append(f"{field}: {shown(value)} is not a name; a name is a string that is not empty")
        return False


def _label_messages(label: LabelSpec) -> Iterator[str]:
    where = f'labels["{label.name}"]'
    if label.dtype is not None and _dtype_name(label.dtype) not in DTYPES:
        yield f"{where}: dtype is {shown(label.dtype)}; valid are {names(DTYPES)}"
    classes = label.classes
    if classes is not None and not (is_number(classes) and classes == classes // 1 >= 1):
        yield f"{where}: classes is {shown(classes)}; it must be a whole number of at least 1"
    if label.ignore is not None and not is_number(label.ignore):
        yield f'{where}: ignore is {shown(label.ignore)}; it must be a number, which means "no label"'


def _dtype_name(dtype: Any) -> str:
    # "float32", numpy.float32 and numpy.dtype("float32") all mean the same
    return str(getattr(dtype, "name", None) or getattr(dtype, "__name__", dtype))
