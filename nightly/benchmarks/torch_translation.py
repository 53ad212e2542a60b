"""The net of tasks/translation.py and its loss as PyTorch's users write them, with the same parameters."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .torch_nets import tensor_of, torch_net

__all__ = ["Translation", "cross_entropy_per_token"]

Tensors = Sequence[torch.Tensor]


class Encoder(nn.Module):
    """An embedding and a bidirectional GRU on packed sentences."""

    def __init__(self, embedding: Any, block: Any) -> None:
        super().__init__()
        self.embedding = _embedding(embedding)
        self.recurrent = _recurrent(block.recurrent.onward, block.recurrent.back)

    def forward(self, words: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        """Return states (N, S, units) for words (N, S) and lengths (N,), which are on the host."""
        packed = pack_padded_sequence(
            self.embedding(words), length.long(), batch_first=True, enforce_sorted=False
        )
        return pad_packed_sequence(self.recurrent(packed)[0], True, total_length=words.shape[1])[0]


class Decoder(nn.Module):
    """An embedding, a GRU, attention after its outputs, and scores of the words."""

    def __init__(self, embedding: Any, block: Any, projection: Any) -> None:
        super().__init__()
        self.embedding, self.recurrent = _embedding(embedding), _recurrent(block.recurrent)
        attention = block.attention
        self.query, self.key = torch_net(attention._query_mid_layer), torch_net(attention._key_mid_layer)
        self.score, self.mixed = torch_net(attention._attention_score), torch_net(block.mixed)
        self.words = torch_net(projection)

    def forward(self, words: torch.Tensor, memory: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        """Return scores (N, T, words) for words (N, T), a memory (N, S, units) and its lengths (N,)."""
        first = memory.sum(1) / length[:, None]
        outputs, _ = self.recurrent(self.embedding(words), first[None].to(memory.dtype))
        scores = self.score(torch.tanh(self.query(outputs)[:, :, None] + self.key(memory)[:, None]))
        padding = torch.arange(memory.shape[1], device=memory.device) >= length[:, None]
        weights = scores[..., 0].masked_fill(padding[:, None], float("-inf")).softmax(-1)
        context = weights.to(memory.dtype) @ memory
        return self.words(self.mixed(torch.cat([outputs, context], 2)))


class Translation(nn.Module):
    """gluonnlp's NMTModel of a recurrent encoder and a decoder with attention."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.encoder = Encoder(block.src_embed[0], block.encoder)
        self.decoder = Decoder(block.tgt_embed[0], block.decoder, block.tgt_proj)

    def forward(self, source: torch.Tensor, target: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        """Return scores of the words that follow those of `target`; the sources' lengths are on the host."""
        memory = self.encoder(source, length)
        return self.decoder(target, memory, length.to(memory.device, non_blocking=True))


def cross_entropy_per_token(outputs: Tensors, labels: Tensors) -> tuple[list[Any], Any]:
    """Return the mean loss over the words of all sentences, in a list, and the number of these words."""
    (scores,), (length, words) = outputs, labels
    valid = torch.arange(words.shape[1], device=words.device) < length[:, None]
    count = length.sum()
    losses = F.cross_entropy(scores.transpose(1, 2), words, reduction="none") * valid
    return [losses.sum() / count], count


def _embedding(block: Any) -> nn.Module:
    return nn.Embedding.from_pretrained(tensor_of(block.weight), freeze=False)


def _recurrent(*directions: Any) -> nn.Module:
    units, size = directions[0]._hidden_size, directions[0].l0_i2h_weight.shape[1]
    layer = nn.GRU(size, units, batch_first=True, bidirectional=len(directions) > 1)
    for suffix, block in zip(("", "_reverse"), directions):
        for name, of_gluon in (("ih", "i2h"), ("hh", "h2h")):
            for kind in ("weight", "bias"):
                tensor = tensor_of(getattr(block, f"l0_{of_gluon}_{kind}"))
                getattr(layer, f"{kind}_{name}_l0{suffix}").data.copy_(tensor)
    return layer
