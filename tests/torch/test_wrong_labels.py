"""Counts of wrong labels are gathered batch by batch, and looked through many at a time."""

from __future__ import annotations

import pytest
import torch

from multifit.gluon.metrics.label_counts import NEVER
from multifit.torch.engine.wrong_labels import WrongLabels


@pytest.mark.parametrize("held", [2, 100])
def test_counts_and_the_first_batch_do_not_depend_on_how_many_are_held(
    held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("multifit.torch.engine.wrong_labels.HELD", held)
    wrong = WrongLabels()
    for batch, counts in enumerate([[0, 0, 0], [0, 2, 0], [1, 3, 0], [4, 0, 0], [0, 1, 0]], 1):
        wrong.add(torch.tensor(counts, dtype=torch.float64), batch)
    counts, first = wrong.counts()
    assert counts.tolist() == [5, 6, 0]
    assert [NEVER - score if score else None for score in first.tolist()] == [3, 2, None]
