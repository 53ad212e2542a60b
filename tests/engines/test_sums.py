"""Sums over a pass do not depend on how they are cut into states."""

from typing import Any

import numpy as np

from multifit.engines.sums import NORM, SAMPLES, Layout, PassSums


class Total:
    """Adds up vectors of NumPy."""

    def __init__(self) -> None:
        self.total: Any = 0.0

    def add(self, values: Any) -> None:
        self.total = self.total + values

    def read(self) -> Any:
        return self.total

    def state(self) -> list[Any]:
        return [self.total]

    def merge(self, state: Any) -> None:
        self.add(state[0])


class Sums(PassSums):
    def __init__(self) -> None:
        super().__init__(Total)

    def add(self, layout: Layout, values: Any) -> None:
        self.vectors.setdefault(layout, Total()).add(values)


LAYOUT = ("loss a", 1), ("metric", 2), ("metric", 1), (f"{NORM}a", 1)


def measure(sums: Sums, batches: Any) -> Sums:
    """Add batches of a vector, a metric's number of labels, and a normalizer each."""
    for vector, count, norm in batches:
        sums.batches, sums.samples = sums.batches + 1, sums.samples + 4
        sums.add(LAYOUT, vector)
        sums.add_number("metric", count)
        sums.add_number(f"{NORM}a", norm)
    return sums


def test_names_that_come_again_stand_behind_each_other_and_normalizers_are_added_up() -> None:
    random = np.random.RandomState(0)
    batches = [(random.rand(5), 3.0, 2.0) for _ in range(4)]
    totals = measure(Sums(), batches).read()
    expected = sum(vector for vector, *_ in batches)
    np.testing.assert_allclose(totals["loss a"], expected[:1])
    np.testing.assert_allclose(totals["metric"], [*expected[1:4], 12.0])
    np.testing.assert_allclose(totals[f"{NORM}a"], expected[4:] + 8.0)
    assert totals[SAMPLES] == 16
    resumed, other = Sums(), measure(Sums(), batches[3:])
    resumed.load(measure(Sums(), batches[:1]).state())
    measure(resumed, batches[1:3]).merge(other.state())
    for name, total in resumed.read().items():
        np.testing.assert_allclose(total, totals[name])
