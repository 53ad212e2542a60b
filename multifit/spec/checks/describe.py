"""Describing arrays in messages."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from ...utils.text import limited

MOST = 8  # arrays that are listed
DEEPEST = 4  # levels of nested arrays that are listed


class ArrayLike(Protocol):
    """A NumPy array or an NDArray."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""

    @property
    def dtype(self) -> Any:
        """The type of its elements."""


def array(value: object) -> str:
    """Return shape and dtype, such as ``(8, 1) float32``; for anything but an array, its type's name."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        dtype = value.dtype
        name = getattr(dtype, "name", None) or getattr(dtype, "__name__", str(dtype).removeprefix("torch."))
        return f"{tuple(value.shape)} {'string' if getattr(dtype, 'kind', None) in ('U', 'S') else name}"
    return "None" if value is None else type(value).__name__


def arrays(values: Iterable[object]) -> str:
    """Return the arrays separated by commas; of many, the first ones and the number of the others."""
    return ", ".join(limited([array(value) for value in values], MOST)) or "nothing"


def structure(tree: object, depth: int = 0) -> str:
    """Return nested arrays with their structure, such as ``[(8, 10) float32, [(8, 1) float32]]``.

    What is nested deeper than a few levels, as in a list that contains itself, is left out.
    """
    if isinstance(tree, (Mapping, list, tuple)) and depth == DEEPEST:
        return "…"
    if isinstance(tree, Mapping):
        items = (f'"{key}": {structure(item, depth + 1)}' for key, item in tree.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(tree, (list, tuple)):
        return "[" + ", ".join(structure(item, depth + 1) for item in tree) + "]"
    return array(tree)


def call(where: str, arguments: Iterable[tuple[str, object]]) -> str:
    """Return what was called and with what, such as ``losses["kind"], called with outputs.kind (8, 2)``."""
    given = ", ".join(f"{name} {structure(value)}" for name, value in arguments)
    return f"{where}, called with {given}" if given else where
