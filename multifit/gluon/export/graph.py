"""A traced net: one graph with named inputs and outputs, and what each of them is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Sequence

import numpy as np

from ..compat import mx

__all__ = ["BATCH", "Array", "Form", "Graph", "described"]

BATCH = "N"  # how the batch axis is written: of any size

Form = Mapping[str, Any]  # what a batch's slots are: (shape, dtype) by name; None where there is no array


@dataclass(frozen=True)
class Array:
    """What goes into a graph or comes out of it.

    Attributes
    ----------
    shape : tuple of (int, str or None), or None
        ``"N"`` is the size of the batch; None, for a size or the whole, is what depends on more than that.
    dtype : str
        Such as ``float32``.
    """

    shape: tuple[Any, ...] | None
    dtype: str


@dataclass(frozen=True)
class Graph:
    """A traced net.

    Attributes
    ----------
    heads : dict of str to Symbol
        The outputs by the spec's names, in its order.
    inputs, outputs : dict of str to Array
        What each of the spec's inputs and outputs is.
    parameters : dict of str to NDArray
        Those that the graph uses, by their flat names, on the CPU; the mean over the devices.
    example : dict of str to tuple of int
        The inputs' shapes in a batch that was seen.
    unread : tuple of str
        Inputs that no output depends on.
    """

    heads: Mapping[str, Any]
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    parameters: Mapping[str, Any]
    example: Mapping[str, tuple[int, ...]]
    unread: tuple[str, ...]

    def symbol(self, called: Mapping[str, str] | None = None) -> Any:
        """Return all outputs as one symbol, each an identity that bears the spec's name, or another."""
        called = called or {}
        heads = [mx.sym.identity(head, name=called.get(name, name)) for name, head in self.heads.items()]
        return mx.sym.Group(heads)


def described(
    heads: Mapping[str, Any], forms: Sequence[Form], parameters: Mapping[str, Any]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return what inputs and outputs are.

    Parameters
    ----------
    heads : mapping of str to Symbol
        The outputs.
    forms : sequence of mapping of str to (shape, dtype)
        The inputs, as they are in one batch or more, the samples along the first axis.
    parameters : mapping of str to NDArray
        Everything else that the symbols read.

    Raises
    ------
    MXNetError
        The shapes do not fit each other.
    """
    symbol = mx.sym.Group(list(heads.values()))
    samples = next(iter(forms[-1].values()))[0][0]
    alike = [_of(form, samples) for form in forms]
    found = [_shapes(symbol, shapes, parameters) for shapes in alike]
    try:
        larger = _shapes(symbol, _of(forms[-1], samples + 1), parameters)
    except mx.base.MXNetError:
        larger = found[-1]
    # where no output is larger for a larger batch, the net was written for batches of one size
    free = larger != found[-1] or any(_is_open(shape) for shape in larger)
    inputs = {
        name: Array((BATCH if free else samples, *_common([form[name] for form in alike])[1:]), dtype)
        for name, (_, dtype) in forms[-1].items()
    }
    outputs = {}
    for i, (name, dtype) in enumerate(zip(heads, _dtypes(symbol, forms[-1], parameters))):
        sizes = zip(_common([shapes[i] for shapes in found]), larger[i])
        outputs[name] = Array(tuple(_size(*pair, samples) for pair in sizes) or None, dtype)
    return inputs, outputs


def _of(form: Form, samples: int) -> dict[str, tuple[int, ...]]:
    return {name: (samples, *shape[1:]) for name, (shape, _) in form.items()}


def _common(shapes: Sequence[tuple[int, ...]]) -> tuple[Any, ...]:
    """Return the sizes that are the same in all shapes, None for the others."""
    return tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes))


def _shapes(symbol: Any, given: Mapping[str, Any], parameters: Mapping[str, Any]) -> list[tuple[int, ...]]:
    known = {**given, **{name: value.shape for name, value in parameters.items()}}
    return symbol.infer_shape_partial(**{name: known[name] for name in symbol.list_inputs()})[1]


def _dtypes(symbol: Any, form: Form, parameters: Mapping[str, Any]) -> list[str]:
    known = {name: dtype for name, (_, dtype) in form.items()}
    known.update({name: value.dtype for name, value in parameters.items()})
    found = symbol.infer_type(**{name: known[name] for name in symbol.list_inputs()})[1]
    return [np.dtype(dtype).name for dtype in found]


def _is_open(shape: tuple[int, ...]) -> bool:
    return not shape or min(shape) < 1  # so MXNet writes what it cannot tell


def _size(first: Any, second: int, samples: int) -> Any:
    if first == second != 0:
        return first
    return BATCH if (first, second) == (samples, samples + 1) else None
