"""A bidirectional recurrent layer that respects the end of each sequence."""

from functools import partial
from typing import Any

from mxnet.gluon import nn

__all__ = ["Bidirectional"]


class Bidirectional(nn.HybridBlock):
    """Reads sequences forwards, and backwards from their last valid token.

    Gluon's ``bidirectional=True`` reads the padding first, and silently ignores ``use_sequence_length`` on
    CPUs, so that its outputs depend on the padding of the batch.

    Parameters
    ----------
    layer : callable
        ``rnn.LSTM`` or ``rnn.GRU``, called with the units.
    units : int
        The size of the output of each direction.

    Notes
    -----
    Inputs are sequences (N, T, C) and their lengths (N,), float32. The output is (N, T, 2 units), and zero
    after the end of each sequence.
    """

    def __init__(self, layer: Any, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.onward, self.back = layer(units), layer(units)

    def hybrid_forward(self, F: Any, inputs: Any, length: Any) -> Any:
        """Run both layers, which take the time axis first."""
        inputs = F.swapaxes(inputs, dim1=0, dim2=1)
        reverse = partial(F.SequenceReverse, sequence_length=length, use_sequence_length=True)
        outputs = F.concat(self.onward(inputs), reverse(self.back(reverse(inputs))), dim=2)
        outputs = F.SequenceMask(outputs, sequence_length=length, use_sequence_length=True)
        return F.swapaxes(outputs, dim1=0, dim2=1)
