"""Sentences in two languages as batches of indices, and back."""

from __future__ import annotations

from typing import Any, Iterable, Sequence

from gluonnlp import Vocab
from gluonnlp.data import SortedBucketSampler, batchify, count_tokens
from mxnet.gluon.data import DataLoader, SimpleDataset

__all__ = ["Bitext"]

Sample = tuple  # of source, target as the decoder reads it, both lengths, target as it should come out


class Bitext:
    """Pairs of sentences to train on, pairs that are held out, and the words of both languages.

    Parameters
    ----------
    train, held_out : sequence of (str, str)
        Source and target, tokens parted by blanks.
    vocabulary : int
        How many words of each language are known, the most frequent ones; of the training data alone.
    longest : int
        Tokens of a sentence; what is behind them is cut off.

    Attributes
    ----------
    source, target : gluonnlp.Vocab
        The words.
    """

    def __init__(
        self,
        train: Sequence[tuple[str, str]],
        held_out: Sequence[tuple[str, str]],
        vocabulary: int,
        longest: int,
    ) -> None:
        self.train, self.held_out, self._longest = train, held_out, longest
        self.source, self.target = (
            Vocab(count_tokens(word for sentence in side for word in sentence.split()), vocabulary)
            for side in zip(*train)
        )

    def encode(self, source: str, target: str = "") -> Sample:
        """Return a sample; without a target, of a decoder that has yet to begin."""
        read = self.source[[*source.split()[: self._longest], self.source.eos_token]]
        written = self.target[target.split()[: self._longest]]
        begin, end = self.target[[self.target.bos_token, self.target.eos_token]]
        return read, [begin, *written], len(read), len(written) + 1, [*written, end]

    def decode(self, indices: Iterable[Iterable[int]]) -> list[str]:
        """Return sentences for target words (N, T), each up to its end; below 0 there is no word."""
        words, end = self.target.idx_to_token, self.target.eos_token
        rows = ([words[index] if index >= 0 else end for index in row] for row in indices)
        return [" ".join(row[: [*row, end].index(end)]) for row in rows]

    def batch(self, samples: Sequence[Sample]) -> Any:
        """Return the slots of a batch, padded to its longest sentence: words int32, lengths float32."""
        source, target = (
            batchify.Pad(pad_val=vocab[vocab.padding_token], dtype="int32")
            for vocab in (self.source, self.target)
        )
        length = batchify.Stack("float32")
        return batchify.Tuple(source, target, length, length, target)(samples)

    def loaders(self, batch_size: int) -> tuple[DataLoader, DataLoader]:
        """Return loaders to train on and of what is held out; a batch's sentences are alike in length."""
        made = []
        for pairs, shuffle in ((self.train, True), (self.held_out, False)):
            samples = [self.encode(*pair) for pair in pairs]
            lengths = [sample[2] for sample in samples]
            batches = SortedBucketSampler(lengths, batch_size, shuffle=shuffle)
            made.append(DataLoader(SimpleDataset(samples), batch_sampler=batches, batchify_fn=self.batch))
        return made[0], made[1]
