"""Nested lists and dicts of arrays, as nets return them and optimizers keep them."""

from __future__ import annotations

from typing import Any, Iterator, Mapping

from ..compat import mx


def flatten(result: Any, flat: list[Any]) -> Any:
    """Append the arrays of a net's result to `flat`; return the result's structure.

    A symbol of several results, as ``F.split`` returns it, counts as a list, as it is one with arrays.
    """
    if isinstance(result, Mapping):
        return {key: flatten(item, flat) for key, item in result.items()}
    if isinstance(result, (list, tuple)) or (isinstance(result, mx.sym.Symbol) and len(result) > 1):
        return [flatten(item, flat) for item in result]
    if result is not None:
        flat.append(result)
        return True
    return None


def regroup(structure: Any, leaves: Iterator[Any]) -> Any:
    """Return arrays in the structure that :func:`flatten` returned."""
    if isinstance(structure, dict):
        return {key: regroup(item, leaves) for key, item in structure.items()}
    if isinstance(structure, list):
        return [regroup(item, leaves) for item in structure]
    return next(leaves) if structure else None
