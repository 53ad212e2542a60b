"""A recurrent layer in both directions that minds where each sequence ends."""

from __future__ import annotations

from functools import partial
from typing import Any

from mxnet.gluon import nn

__all__ = ["BothWays"]


class BothWays(nn.HybridBlock):
    """Read sequences forwards and backwards, backwards from their last valid token.

    Gluon's ``bidirectional=True`` reads the padding first, and its ``use_sequence_length`` is ignored on CPU
    without a word, so what it says of a sentence depends on how far the batch was padded.

    Parameters
    ----------
    layer : callable
        ``rnn.LSTM`` or ``rnn.GRU``, called with the units.
    units : int
        Of each direction.

    Notes
    -----
    Inputs are sequences (N, T, C) and their lengths (N,), float32; the output is (N, T, 2 units), zero behind
    each sequence's end.
    """

    def __init__(self, layer: Any, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.onward, self.back = layer(units), layer(units)

    def hybrid_forward(self, F: Any, inputs: Any, length: Any) -> Any:
        """Run both layers, time first, as they want it."""
        inputs = F.swapaxes(inputs, dim1=0, dim2=1)
        reverse = partial(F.SequenceReverse, sequence_length=length, use_sequence_length=True)
        outputs = F.concat(self.onward(inputs), reverse(self.back(reverse(inputs))), dim=2)
        outputs = F.SequenceMask(outputs, sequence_length=length, use_sequence_length=True)
        return F.swapaxes(outputs, dim1=0, dim2=1)
