"""Counts of wrong labels are kept batch by batch, and looked through many at a time."""

import pytest

from multifit.gluon.compat import mx
from multifit.gluon.metrics.labels import LabelColumns, LabelCounts

COUNTS = [[0, 0, 0], [0, 2, 0], [1, 3, 0], [4, 0, 0], [0, 1, 0]]  # by batch and rule
LIMITS = {"many": {}, "two batches": {"BATCHES": 2}, "ten elements": {"ELEMENTS": 10}}


@pytest.mark.parametrize("limit", LIMITS)
def test_counts_and_the_first_batch_do_not_depend_on_how_many_are_kept(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in LIMITS[limit].items():
        monkeypatch.setattr(f"multifit.gluon.metrics.labels.{name}", value)
    counts, columns = LabelCounts(), LabelColumns(("a", "b", "c"), 1)
    for batch, row in enumerate(COUNTS, 1):
        statistics = mx.nd.array([9, *row, 9], dtype="float64")  # five elements
        counts.add(columns, [statistics], batch, 8, 0)
        uncounted = sum(len(each.batches) for each in counts._uncounted.values())
        assert uncounted == (batch if limit == "many" else batch % 2)
    assert counts.read() == {"a": (5, 3), "b": (6, 2)}
    again = LabelCounts()
    again.load(counts.state())
    assert again.read() == {"a": (5, 3), "b": (6, 2)}


def test_batches_of_ever_new_sizes_are_not_held_until_the_epoch_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multifit.gluon.metrics.labels.MAX_KINDS", 2)
    counts = LabelCounts()
    for batch, row in enumerate(COUNTS, 1):  # each with a graph of its own, and another number of samples
        statistics = mx.nd.array(row, dtype="float64")
        counts.add(LabelColumns(("a", "b", "c"), 0), [statistics], batch, 8 + batch, 0)
        assert len(counts._uncounted) <= 2
    assert counts.read() == {"a": (5, 3), "b": (6, 2)}
