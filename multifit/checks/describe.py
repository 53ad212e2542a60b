"""How checks name what they found."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

__all__ = ["array", "arrays", "structure"]

MOST = 8  # what is longer is not read


def array(value: Any) -> str:
    """Return shape and dtype, such as ``(8, 1) float32``; the type's name for anything that is no array."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        dtype = value.dtype
        name = getattr(dtype, "name", None) or getattr(dtype, "__name__", str(dtype))
        return f"{tuple(value.shape)} {'string' if getattr(dtype, 'kind', None) in ('U', 'S') else name}"
    return "None" if value is None else type(value).__name__


def arrays(values: Iterable[Any]) -> str:
    """Return the arrays, separated by commas; of many, the first and how many more there are."""
    found = [array(value) for value in values]
    more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
    return (", ".join(found[:MOST]) or "nothing") + more


def structure(tree: Any) -> str:
    """Return nested arrays with their structure, such as ``[(8, 10) float32, [(8, 1) float32]]``."""
    if isinstance(tree, Mapping):
        return "{" + ", ".join(f'"{key}": {structure(item)}' for key, item in tree.items()) + "}"
    if isinstance(tree, (list, tuple)):
        return "[" + ", ".join(structure(item) for item in tree) + "]"
    return array(tree)
