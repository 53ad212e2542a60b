"""seed_everything seeds all random generators."""

import random

import numpy as np
import pytest

from multifit import seeding
from multifit.gluon.compat import mx
from multifit.seeding import seed_everything


def draw() -> list[float]:
    return [random.random(), float(np.random.rand()), float(mx.nd.random.uniform().asscalar())]


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
def test_the_same_seed_gives_the_same_numbers(seed):
    seed_everything(seed)
    first = draw()
    after = draw()
    seed_everything(seed)
    assert draw() == first
    assert all(one != other for one, other in zip(first, after))


def test_different_seeds_give_different_numbers():
    seed_everything(1)
    first = draw()
    seed_everything(2)
    assert all(one != other for one, other in zip(first, draw()))


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_out_of_range_is_an_error(seed):
    with pytest.raises(ValueError, match=f"from 0 to 4294967295, not {seed}"):
        seed_everything(seed)


def test_an_engine_that_is_imported_later_gets_the_seed(monkeypatch):
    monkeypatch.setattr(seeding, "SEEDERS", [])
    monkeypatch.setattr(seeding, "_last", [])
    given = []
    seeding.add_seeder(given.append)
    assert not given
    seed_everything(2**31 + 5)
    seeding.add_seeder(given.append)
    assert given == [5, 5]
