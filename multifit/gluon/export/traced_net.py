"""A traced net: one graph with named inputs and outputs, and what each of them is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional, Union

from ...protocols import Array, Shape
from ..compat import mx

BATCH = "N"  # stands for the size of the batch in a shape

OpenShape = tuple[Optional[Union[int, str]], ...]
"""A shape whose sizes may be open: ``"N"`` for the batch, None for an axis that differs between batches."""


@dataclass(frozen=True)
class PortType:
    """Shape and dtype of an input or output.

    Attributes
    ----------
    shape : tuple of (int, str or None), or None
        See :data:`OpenShape`; None if nothing is known.
    dtype : str
        Such as ``float32``.
    """

    shape: OpenShape | None
    dtype: str


@dataclass(frozen=True)
class TracedNet:
    """A net as a graph.

    Attributes
    ----------
    symbols : mapping of str to Symbol
        The outputs by the spec's names, in its order.
    inputs, outputs : mapping of str to PortType
        The spec's inputs, without those that are None, and its outputs.
    parameters : mapping of str to NDArray
        Those that the graph reads, by MXNet's own names, on the CPU; the mean over the devices.
    example : mapping of str to tuple of int
        The inputs' shapes in one batch.
    unread : tuple of str
        Inputs that no output depends on.
    """

    symbols: Mapping[str, mx.sym.Symbol]
    inputs: Mapping[str, PortType]
    outputs: Mapping[str, PortType]
    parameters: Mapping[str, Array]
    example: Mapping[str, Shape]
    unread: tuple[str, ...]

    def grouped(self, names: Mapping[str, str] | None = None) -> mx.sym.Symbol:
        """Return all outputs as one symbol; each is an identity node.

        Parameters
        ----------
        names : mapping of str to str, optional
            Names of the nodes by the spec's names; default: the spec's names.
        """
        names = names or {}
        outputs = [
            mx.sym.identity(symbol, name=names.get(name, name)) for name, symbol in self.symbols.items()
        ]
        return mx.sym.Group(outputs)
