"""Sentences in two languages, encoded as batches of indices and decoded again."""

from collections.abc import Iterable, Sequence
from typing import Any

from gluonnlp import Vocab
from gluonnlp.data import SortedBucketSampler, batchify, count_tokens
from mxnet.gluon.data import DataLoader, SimpleDataset

__all__ = ["Bitext"]

Sample = tuple  # source, decoder's input, both lengths, decoder's target


class Bitext:
    """Training and held-out pairs of sentences, and the vocabularies of both languages.

    Parameters
    ----------
    train, held_out : sequence of (str, str)
        Source and target, tokens separated by spaces.
    vocabulary : int
        The maximum number of words of each language: the most frequent ones of the training data.
    longest : int
        The maximum number of tokens of a sentence; the others are cut off.

    Attributes
    ----------
    source, target : gluonnlp.Vocab
        The vocabularies.
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
        """Return a sample; without a target, the decoder's input is the begin token alone."""
        words = self.source[[*source.split()[: self._longest], self.source.eos_token]]
        tokens = self.target[target.split()[: self._longest]]
        begin, end = self.target[[self.target.bos_token, self.target.eos_token]]
        return words, [begin, *tokens], len(words), len(tokens) + 1, [*tokens, end]

    def decode(self, indices: Iterable[Iterable[int]]) -> list[str]:
        """Return sentences for target words (N, T), each up to its end; negative indices are padding."""
        words, end = self.target.idx_to_token, self.target.eos_token
        rows = ([words[index] if index >= 0 else end for index in row] for row in indices)
        return [" ".join(row[: [*row, end].index(end)]) for row in rows]

    def batch(self, samples: Sequence[Sample]) -> Any:
        """Return the slots of a batch, padded to its longest sentence: words as int32, lengths as float32."""
        source, target = (
            batchify.Pad(pad_val=vocab[vocab.padding_token], dtype="int32")
            for vocab in (self.source, self.target)
        )
        length = batchify.Stack("float32")
        return batchify.Tuple(source, target, length, length, target)(samples)

    def loaders(self, batch_size: int) -> tuple[DataLoader, DataLoader]:
        """Return loaders of training and held-out pairs; sentences of similar length share a batch."""
        loaders = []
        for pairs, shuffle in ((self.train, True), (self.held_out, False)):
            samples = [self.encode(*pair) for pair in pairs]
            lengths = [sample[2] for sample in samples]
            batches = SortedBucketSampler(lengths, batch_size, shuffle=shuffle)
            loaders.append(DataLoader(SimpleDataset(samples), batch_sampler=batches, batchify_fn=self.batch))
        return loaders[0], loaders[1]
