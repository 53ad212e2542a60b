"""Reading declarations: what has the right form is kept, what has not is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Iterable

from ..arguments import is_number
from ..errors import names, shown
from .names import listed
from .parts import LabelSpec

__all__ = ["Form"]

DTYPES = ("float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool")


class Form:
    """Reads the fields of a TaskSpec, and collects in `messages` what is no name, no dict and no dtype.

    What is kept is safe to work with: strings that are not empty, and mappings that have such keys.
    """

    def __init__(self) -> None:
        self.messages: list[str] = []

    def names(self, what: str, value: Any) -> tuple[str, ...]:
        """Return a name or a list of names as a tuple."""
        return tuple(name for name in self._items(what, value) if self._is_name(what, name))

    def demand(self, what: str, named: object) -> None:
        """Tell that none is named, where that is so and nothing else was told."""
        if not named and not self.messages:
            self.messages.append(f"{what}: none is named; name at least one")

    def tree(self, what: str, value: Any) -> tuple[Any, ...]:
        """Return names as nested tuples, ``...`` at the end of any; a single name as a 1-tuple."""
        found: list[Any] = []
        items = self._items(what, value)
        for i, item in enumerate(items):
            if isinstance(item, (list, tuple)):
                found.append(self.tree(what, item))
            elif item is Ellipsis and i == len(items) - 1:
                found.append(item)
            elif item is Ellipsis:
                self.messages.append(
                    f'{what}: "..." must come last; it ignores whatever the net returns after the named ones'
                )
            elif self._is_name(what, item):
                found.append(item)
        return tuple(found)

    def labels(self, value: Any) -> list[LabelSpec]:
        """Return names and LabelSpecs as LabelSpecs."""
        found = []
        for item in self._items("labels", value):
            label = item if isinstance(item, LabelSpec) else LabelSpec(item)
            if self._is_name("labels", label.name):
                found.append(label)
                self.messages += _label(label)
        return found

    def mapping(self, what: str, value: Any, kind: type, example: str) -> dict[str, Any]:
        """Return a dict of declarations by name; a bare one becomes a `kind`."""
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.messages.append(
                f'{what}: is {shown(value)}; give a dict by name, such as {what}={{"{example}": ...}}'
            )
            return {}
        kept = {key: item for key, item in value.items() if self._is_name(what, key)}
        return {key: item if isinstance(item, kind) else kind(item) for key, item in kept.items()}

    def _items(self, what: str, value: Any) -> tuple[Any, ...]:
        if isinstance(value, (set, frozenset, Mapping)):
            self.messages.append(f"{what}: {shown(value)} is a {type(value).__name__}; give a list of names")
            return ()
        return listed(value)

    def _is_name(self, what: str, value: Any) -> bool:
        if isinstance(value, str) and value:
            return True
        self.messages.append(f"{what}: {shown(value)} is no name; a name is a string that is not empty")
        return False


def _label(label: LabelSpec) -> Iterable[str]:
    where = f'labels["{label.name}"]'
    if label.dtype is not None and _dtype_name(label.dtype) not in DTYPES:
        yield f"{where}: dtype is {shown(label.dtype)}; valid are {names(DTYPES)}"
    if label.classes is not None and not (
        is_number(label.classes) and label.classes == label.classes // 1 >= 1
    ):
        yield f"{where}: classes is {shown(label.classes)}; it must be a whole number of at least 1"
    if label.ignore is not None and not is_number(label.ignore):
        yield f"{where}: ignore is {shown(label.ignore)}; it must be a number, which stands for no label"


def _dtype_name(dtype: Any) -> str:
    # "float32", numpy.float32 and numpy.dtype("float32") all mean the same
    return str(getattr(dtype, "name", None) or getattr(dtype, "__name__", dtype))
