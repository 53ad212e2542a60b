"""A recurrent encoder and an attention decoder for translation."""

from typing import Any

import mxnet as mx
from gluonnlp.model import MLPAttentionCell
from mxnet.gluon import nn, rnn

from .bidirectional import Bidirectional
from .translator import memory

__all__ = ["AttentionDecoder", "OneStepDecoder", "RecurrentEncoder"]


class RecurrentEncoder(nn.HybridBlock):
    """A bidirectional GRU.

    Parameters
    ----------
    units : int
        The size of its states, half of it for each direction.
    """

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.recurrent = Bidirectional(rnn.GRU, units // 2)

    def hybrid_forward(self, F: Any, embedded: Any, states: Any = None, length: Any = None) -> Any:
        """Return states (N, S, units) for words (N, S, C) and lengths (N,), and no attention weights."""
        return self.recurrent(embedded, length), []


class AttentionDecoder(nn.HybridBlock):
    """A GRU with attention (Bahdanau et al., 2015) after its outputs (Luong et al., 2015).

    The attention is not fed back into the GRU, so that one call handles a whole sentence.

    Parameters
    ----------
    units : int
        The size of its states and of the encoder's.
    """

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.recurrent = rnn.GRU(units, layout="NTC")
            self.attention = MLPAttentionCell(units)
            self.mixed = nn.Dense(units, activation="tanh", flatten=False)

    def init_state_from_encoder(self, encoded: Any, length: Any) -> list[Any]:
        """Return the memory (N, S, units), its valid positions (N, S), and its mean as the first state."""
        F = mx.sym if isinstance(encoded, mx.sym.Symbol) else mx.nd
        mean = F.broadcast_div(F.sum(encoded, axis=1), F.expand_dims(length, axis=1))
        return [*memory(encoded, length), mean]

    def hybrid_forward(self, F: Any, embedded: Any, states: Any, length: Any = None) -> Any:
        """Return outputs (N, T, units) for tokens (N, T, C), the new states, and the weights (N, T, S)."""
        memory, valid, state = states
        outputs, (state,) = self.recurrent(embedded, [F.expand_dims(state, axis=0)])
        mask = F.broadcast_like(F.expand_dims(valid, axis=1), embedded, lhs_axes=(1,), rhs_axes=(1,))
        context, weights = self.attention(outputs, memory, memory, mask)
        outputs = self.mixed(F.concat(outputs, context, dim=2))
        if length is not None:
            outputs = F.SequenceMask(outputs, length, use_sequence_length=True, axis=1)
        return outputs, [memory, valid, F.squeeze(state, axis=0)], [[weights]]


class OneStepDecoder(nn.HybridBlock):
    """The same decoder, for one token at a time."""

    def __init__(self, decoder: AttentionDecoder, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.decoder = decoder

    def hybrid_forward(self, F: Any, embedded: Any, states: Any) -> Any:
        """Return an output (N, units) for a token (N, C), and the other results of the decoder."""
        outputs, states, weights = self.decoder(F.expand_dims(embedded, axis=1), states)
        return F.squeeze(outputs, axis=1), states, weights
