"""A traced net: one graph with named inputs and outputs, and their shapes and dtypes for every batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Optional, Union

import numpy as np

from ...protocols import Array, Shape
from ..compat import mx

BATCH = "N"  # stands for the size of the batch in a shape

OpenShape = tuple[Optional[Union[int, str]], ...]
"""A shape whose sizes may be open: ``"N"`` for the batch, None for an axis that differs between batches."""

InputSignature = Mapping[str, tuple[Shape, str]]
"""Shape and dtype of each input in a batch."""


@dataclass(frozen=True)
class PortType:
    """Shape and dtype of an input or output; the shape is None if nothing is known about it."""

    shape: OpenShape | None
    dtype: str


@dataclass(frozen=True)
class TracedNet:
    """A net as a graph.

    `symbols` are the outputs, by the spec's names and in its order. `inputs` and `outputs` are the types of
    the spec's inputs and outputs, without inputs that are None. `parameters` are the values that the graph
    reads, by MXNet's own names, on the CPU: the mean over the devices. `example` has the inputs' shapes in
    one batch. No output depends on the inputs that are `unread`. `names` are the parameters' structural
    names, and `trained` are the parameters that receive gradients.
    """

    symbols: Mapping[str, mx.sym.Symbol]
    inputs: Mapping[str, PortType]
    outputs: Mapping[str, PortType]
    parameters: Mapping[str, Array]
    example: Mapping[str, Shape]
    unread: tuple[str, ...]
    names: Mapping[str, str]
    trained: tuple[str, ...]

    def grouped(self, names: Mapping[str, str] | None = None) -> mx.sym.Symbol:
        """Return all outputs as one symbol of identity nodes; `names` replace the spec's names."""
        names = names or {}
        outputs = [
            mx.sym.identity(symbol, name=names.get(name, name)) for name, symbol in self.symbols.items()
        ]
        return mx.sym.Group(outputs)


def port_types(
    symbols: Mapping[str, mx.sym.Symbol],
    signatures: Sequence[InputSignature],
    parameters: Mapping[str, Array],
) -> tuple[dict[str, PortType], dict[str, PortType]]:
    """Return the types of inputs and outputs; raises MXNetError if their shapes do not fit each other.

    `symbols` are the outputs. `signatures` are those of the inputs in one or several batches, with the
    samples along the first axis. `parameters` are everything else that the symbols read.
    """
    group = mx.sym.Group(list(symbols.values()))
    samples = next(iter(signatures[-1].values()))[0][0]
    input_shapes = [_with_samples(signature, samples) for signature in signatures]
    output_shapes = [_infer_shapes(group, shapes, parameters) for shapes in input_shapes]
    larger, more = output_shapes[-1], samples
    for size in (2 * samples, samples + 1):  # a net may only take an even number of samples
        with suppress(mx.base.MXNetError):
            larger, more = _infer_shapes(group, _with_samples(signatures[-1], size), parameters), size
    # If no output grows with the batch, the net was written for batches of one size.
    any_size = larger != output_shapes[-1] or any(_is_unknown(shape) for shape in larger)
    batch = BATCH if any_size else samples
    inputs = {
        name: PortType((batch, *_common_sizes([shapes[name] for shapes in input_shapes])[1:]), dtype)
        for name, (_, dtype) in signatures[-1].items()
    }
    outputs = {}
    for i, (name, dtype) in enumerate(zip(symbols, _infer_dtypes(group, signatures[-1], parameters))):
        sizes = zip(_common_sizes([shapes[i] for shapes in output_shapes]), larger[i])
        outputs[name] = PortType(tuple(_open_size(*pair, samples, more) for pair in sizes) or None, dtype)
    return inputs, outputs


def fitting(
    symbols: Mapping[str, mx.sym.Symbol],
    signatures: Sequence[InputSignature],
    parameters: Mapping[str, Array],
) -> list[InputSignature]:
    """Return the signatures that the symbols take, with as many axes as the last of them.

    The others are of batches for which the net has raised an error. If it takes none, all are returned.
    """
    group = mx.sym.Group(list(symbols.values()))
    taken = [each for each in signatures if _takes(group, each, parameters)] or list(signatures)
    return [each for each in taken if _axes(each) == _axes(taken[-1])]


def _takes(symbol: mx.sym.Symbol, signature: InputSignature, parameters: Mapping[str, Array]) -> bool:
    with suppress(mx.base.MXNetError):
        _infer_shapes(symbol, {name: shape for name, (shape, _) in signature.items()}, parameters)
        return True
    return False


def _axes(signature: InputSignature) -> list[int]:
    return [len(shape) for shape, _ in signature.values()]


def _with_samples(signature: InputSignature, samples: int) -> dict[str, Shape]:
    return {name: (samples, *shape[1:]) for name, (shape, _) in signature.items()}


def _common_sizes(shapes: Sequence[Shape]) -> OpenShape:
    """Return the sizes that are equal in all shapes, None for the others."""
    return tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes))


def _infer_shapes(
    symbol: mx.sym.Symbol, inputs: Mapping[str, Shape], parameters: Mapping[str, Array]
) -> list[Shape]:
    known = {**inputs, **{name: value.shape for name, value in parameters.items()}}
    return symbol.infer_shape_partial(**{name: known[name] for name in symbol.list_inputs()})[1]


def _infer_dtypes(
    symbol: mx.sym.Symbol, signature: InputSignature, parameters: Mapping[str, Array]
) -> list[str]:
    known = {name: dtype for name, (_, dtype) in signature.items()}
    known.update({name: value.dtype for name, value in parameters.items()})
    dtypes = symbol.infer_type(**{name: known[name] for name in symbol.list_inputs()})[1]
    return [np.dtype(dtype).name for dtype in dtypes]


def _is_unknown(shape: Shape) -> bool:
    return not shape or min(shape) < 1  # MXNet's sign for sizes that it cannot infer


def _open_size(size: int | str | None, size_of_larger: int, samples: int, more: int) -> int | str | None:
    """Return an axis's size as it is declared: fixed, that of the batch, or None if it varies otherwise.

    `size` is its size in a batch of `samples`, `size_of_larger` its size in a batch of `more`.
    """
    if size == size_of_larger != 0:
        return size
    return BATCH if (size, size_of_larger) == (samples, more) else None
