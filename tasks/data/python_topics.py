"""English text that comes with Python: what ``help("for")`` and the like print, some 95,000 words.

It is a part of Python's documentation, under the licence of the Python Software Foundation. It grows with
each version of Python, so figures differ a little between versions.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pydoc_data.topics import topics

import numpy as np

__all__ = ["bigram_perplexity", "read_topics", "unigram_perplexity", "words_of"]

HELD_OUT = 8  # each eighth topic is
DISCOUNT = 0.75  # of Kneser-Ney


def words_of(text: str) -> list[str]:
    """Return the words and signs of a text, in lower case."""
    return re.findall(r"[^\W_]+|[^\s\w]|_+", text.lower())


def read_topics(texts: Mapping[str, str] = topics) -> tuple[list[str], list[str]]:
    """Return the words of training topics, and of held-out ones.

    Topics repeat each other. Each paragraph is kept once; one that occurs in both is used for training.
    """
    names = sorted(texts)
    held_out = names[HELD_OUT - 1 :: HELD_OUT]
    seen: set[str] = set()

    def words(kept: Sequence[str]) -> list[str]:
        paragraphs = [" ".join(part.split()) for name in kept for part in texts[name].split("\n\n")]
        new = [part for part in dict.fromkeys(paragraphs) if part not in seen]
        seen.update(new)
        return [word for part in new for word in words_of(part)]

    return words([name for name in names if name not in held_out]), words(held_out)


def unigram_perplexity(train: Sequence[int], held_out: Sequence[int], count: int) -> float:
    """Return the perplexity of held-out words, each as probable as it is frequent in training, plus one.

    Words are numbers below `count`.
    """
    frequencies = np.bincount(train, minlength=count) + 1.0
    return float(np.exp(-np.log(frequencies[held_out] / frequencies.sum()).mean()))


def bigram_perplexity(train: Sequence[int], held_out: Sequence[int], count: int) -> float:
    """Return the perplexity of each held-out word after the one before it, by counts of pairs in training.

    They are smoothed as Kneser and Ney (1995) do. Words are numbers below `count`.
    """
    pairs = Counter(zip(train[:-1], train[1:]))
    befores, followers, after = Counter(train[:-1]), Counter(first for first, _ in pairs), np.ones(count)
    for _, second in pairs:
        after[second] += 1  # the number of different words before it, plus one
    after /= after.sum()

    def probability(first: int, second: int) -> float:
        if not befores[first]:
            return float(after[second])
        rest = DISCOUNT * followers[first] * after[second]
        return float((max(pairs[first, second] - DISCOUNT, 0) + rest) / befores[first])

    return float(np.exp(-np.mean([np.log(probability(*pair)) for pair in zip(held_out[:-1], held_out[1:])])))
