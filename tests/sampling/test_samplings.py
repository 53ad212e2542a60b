"""What holds for all ways of sampling from several loaders, and what each of them does."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from multifit.sampling import Proportional, Ratios, RoundRobin, TaskBatch, TaskLoaders, Together
from multifit.sampling.ways import apportion, spread

SIZES = {"large": 100, "middle": 30, "small": 5}
WAYS: dict[str, Any] = {
    "proportional": Proportional(), "limited": Proportional(temperature=2, largest=20, batches=50),
    "round robin": RoundRobin(), "ratios": Ratios(large=3, middle=2, small=0.5),
    "longest": Together(), "shortest": Together("shortest"),
}  # fmt: skip
ALL = pytest.mark.parametrize("sampling", WAYS.values(), ids=WAYS)


def loaders(sampling: Any, sizes: Any = SIZES) -> TaskLoaders:
    return TaskLoaders({name: range(size) for name, size in sizes.items()}, sampling)


@ALL
def test_an_epoch_takes_as_many_as_it_counts(sampling: Any) -> None:
    for sizes in (SIZES, {"large": 9000, "middle": 1, "small": 1}):
        data = loaders(sampling, sizes)
        updates = data.updates(seed=3, epoch=0)
        assert Counter(name for update in updates for name in update) == data.counts
        assert len(updates) == len(data) and all(data.counts.values())


@ALL
def test_the_order_is_a_function_of_seed_and_epoch(sampling: Any) -> None:
    before = np.random.get_state()[1].tolist()
    assert loaders(sampling).updates(7, 2) == loaders(sampling).updates(7, 2)
    assert loaders(sampling).updates(2**40 + 7, 2) == loaders(sampling).updates((2**40 + 7) % 2**32, 2)
    assert np.random.get_state()[1].tolist() == before


@ALL
def test_one_loader_is_read_as_it_is(sampling: Any) -> None:
    sampling = Ratios(only=2) if isinstance(sampling, Ratios) else sampling
    data = loaders(sampling, {"only": 6})
    assert len(data) == (50 if getattr(sampling, "batches", None) else 6)
    assert set(data.updates(0, 0)) == {("only",)}


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({}, [100, 30, 5]),
        ({"temperature": 2}, [76, 42, 17]),
        ({"temperature": 1e9}, [45, 45, 45]),
        ({"temperature": 1e-4}, [133, 1, 1]),
        ({"largest": 30, "batches": 65}, [30, 30, 5]),
        ({"temperature": 2, "largest": 45}, [63, 51, 21]),
    ],
)
def test_proportional_counts(options: dict[str, Any], counts: list[int]) -> None:
    assert list(loaders(Proportional(**options)).counts.values()) == counts


def test_the_updates_of_an_epoch() -> None:
    data = loaders(Proportional())
    assert data.updates(7, 0) != data.updates(7, 1) != data.updates(8, 1)
    two = {"a": 3, "b": 1}
    assert loaders(RoundRobin(), two).updates(0, 0) == [("a",), ("b",)] * 3
    assert loaders(Ratios(a=2, b=1), {"a": 2, "b": 4}).updates(0, 0) == [("a",), ("b",), ("a",)] * 2
    assert "".join(name for (name,) in spread({"a": 5, "b": 1})) == "aaabaa"
    turns = [name for (name,) in spread({"a": 50, "b": 10})]
    assert all(turns[i : i + 6].count("b") == 1 for i in range(0, 60, 6))
    assert loaders(Together(), two).updates(0, 0) == [("a", "b")] * 3
    assert len(loaders(Together("shortest"), two)) == 1 and Together().joins and not RoundRobin().joins
    assert TaskBatch({"a": 1}).name == "a" and TaskBatch({"a": 1, "b": 2}).name == "a + b"


@pytest.mark.parametrize("total", [1, 7, 12345])
def test_whole_numbers_add_up_and_are_near(total: int) -> None:
    random = np.random.RandomState(total)
    for _ in range(50):
        rates = random.rand(random.randint(1, 6)) + 1e-3
        counts = apportion(total, rates.tolist())
        assert sum(counts) == total
        exact = total * rates / rates.sum()
        if exact.min() >= 1:
            assert np.abs(counts - exact).max() < 1
        elif total >= len(rates):
            assert min(counts) >= 1


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (Proportional, {"temperature": 0}, "Proportional: temperature is 0; valid is a finite number above 0"),
    (Proportional, {"largest": 0.5}, "Proportional: largest is 0.5; valid is a whole number of at least 1"),
    (Ratios, {}, "Ratios: there is none; give one for each loader"),
    (Ratios, {"a": 0, "b": "x"}, "Ratios: a is 0; valid is a finite number above 0\nRatios: b is 'x'; valid"),
    (Together, {"until": "longst"}, "Together: until is 'longst' (did you mean \"longest\"?)"),
]


@pytest.mark.parametrize(("kind", "options", "message"), WRONG)
def test_wrong_options_are_named(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        kind(**options)
    assert message in str(caught.value)


def test_what_does_not_fit_the_loaders_is_named() -> None:
    messages = list(Ratios(large=1, midle=2, tiny=1).messages(SIZES))
    assert 'there is no loader "midle" (did you mean "middle"?); loaders are "large"' in messages[0]
    assert messages[2:] == [
        f'Ratios: the loader "{name}" has no ratio; give {name}=1, or leave the loader out'
        for name in ("middle", "small")
    ]
    [message] = Proportional(batches=2).messages(SIZES)
    assert message == ("Proportional: batches is 2, fewer than the 3 loaders; give each of them at least one")
    assert not list(RoundRobin().messages(SIZES)) and not list(Together().messages(SIZES))
