"""A net that translates sentences: an encoder and a decoder between embeddings and scores of words."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from gluonnlp.model import transformer
from mxnet.gluon import nn

__all__ = ["TransformerDecoder", "Translator", "memory"]


class Translator(nn.HybridBlock):
    """What gluonnlp's NMTModel computes, as one graph, with the same names of parameters.

    Parameters
    ----------
    source_words, target_words : int
        The number of words of each language.
    size : int
        The size of a word's embedding.
    encoder, decoder, one_step_decoder : HybridBlock
        As for NMTModel; ``decoder.init_state_from_encoder(encoded, length)`` also takes symbols.
    initializer : Initializer
        That of the embeddings.
    """

    def __init__(
        self,
        source_words: int,
        target_words: int,
        size: int,
        encoder: Any,
        decoder: Any,
        one_step_decoder: Any,
        initializer: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.encoder, self.decoder, self.one_step_ahead_decoder = encoder, decoder, one_step_decoder
        with self.name_scope():
            self.src_embed = nn.HybridSequential(prefix="src_embed_")
            self.tgt_embed = nn.HybridSequential(prefix="tgt_embed_")
            for embed, words in ((self.src_embed, source_words), (self.tgt_embed, target_words)):
                with embed.name_scope():
                    embed.add(nn.Embedding(words, size, weight_initializer=initializer))
            self.tgt_proj = nn.Dense(target_words, flatten=False, prefix="tgt_proj_")

    def hybrid_forward(self, F: Any, source: Any, target: Any, source_length: Any, target_length: Any) -> Any:
        """Return scores (N, T, words), and the attention weights.

        Takes word indices (N, S) and (N, T), and lengths (N,).
        """
        encoded, _ = self.encode(source, source_length)
        states = self.decoder.init_state_from_encoder(encoded, source_length)
        outputs, _, weights = self.decoder(self.tgt_embed(target), states, target_length)
        return self.tgt_proj(outputs), weights

    def encode(self, source: Any, length: Any) -> Any:
        """Return the encoder's outputs."""
        return self.encoder(self.src_embed(source), None, length)

    def decode_step(self, token: Any, states: Any) -> Any:
        """Return the scores after one token (N,), and the states."""
        outputs, states, _ = self.one_step_ahead_decoder(self.tgt_embed(token), states)
        return self.tgt_proj(outputs), states


class TransformerDecoder(transformer.TransformerDecoder):
    """gluonnlp's decoder, whose states are computed from symbols too."""

    def init_state_from_encoder(self, encoded: Any, length: Any) -> list[Any]:
        """Return the memory (N, S, C), and its valid positions (N, S)."""
        return memory(encoded, length)


def memory(encoded: Any, length: Any) -> list[Any]:
    """Return what an encoder returned, (N, S, C), and its valid positions, for arrays and for symbols."""
    F = mx.sym if isinstance(encoded, mx.sym.Symbol) else mx.nd
    places = F.expand_dims(F.contrib.arange_like(encoded, axis=1), axis=0)
    return [encoded, F.broadcast_lesser(places, F.expand_dims(length, axis=1))]
