"""Indices without a row in an Embedding, for which MXNet takes the nearest row, are warned of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import MultiEstimator

from mxnet import gluon  # isort: skip


class Words(gluon.HybridBlock):
    """Looks words up after `first`, whatever their place, and classifies their mean."""

    def __init__(self, first: Any = lambda F, words: words) -> None:
        super().__init__()
        self.first = first
        self.embedding, self.out = gluon.nn.Embedding(10, 4), gluon.nn.Dense(2)

    def hybrid_forward(self, F: Any, words: Any) -> Any:
        return self.out(self.embedding(self.first(F, words)).mean(axis=1))


def warnings(net: Any, words: list[int], val_words: tuple[int, ...] = (0, 0)) -> list[str]:
    net.hybridize()
    batch, val_batch = ((np.float32([each]), np.zeros(1, "float32")) for each in (words, val_words))
    plan = MultiEstimator(net, gluon.loss.SoftmaxCrossEntropyLoss()).check([batch], [val_batch])
    return [notice for notice in plan.notices if "Embedding" in notice]


@pytest.mark.parametrize("word", [10, -1])
@pytest.mark.parametrize(
    "first",
    [
        lambda F, words: words,
        lambda F, words: F.cast(F.transpose(words).reshape((1, -1)), "float32"),
        lambda F, words: F.slice_axis(words, axis=1, begin=1, end=None),
    ],
    ids=["as they are", "rearranged", "a part of them"],
)
def test_an_index_without_a_row(word: int, first: Any) -> None:
    assert warnings(Words(first), [3, 9, word]) == [
        f'the input "data" holds {word}, but "embedding.weight" has the rows 0 to 9, and the nearest is '
        "taken without an error; give the Embedding a row for each index"
    ]


def test_in_validation_data() -> None:
    (warning,) = warnings(Words(), [3, 9], val_words=(2, 70))
    assert 'the input "data" holds 70' in warning


@pytest.mark.parametrize(
    ("net", "words"),
    [(Words(), [0, 9]), (Words(lambda F, words: words % 10), [12, 40]), (gluon.nn.Dense(2), [12, 40])],
    ids=["all have one", "computed from the input", "no Embedding"],
)
def test_what_is_as_meant_is_not(net: Any, words: list[int]) -> None:
    assert warnings(net, words) == []
