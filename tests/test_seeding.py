"""seed_everything seeds all random generators."""

import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from multifit import seeding
from multifit.gluon.compat import mx
from multifit.seeding import seed_everything


def draw() -> list[float]:
    return [random.random(), float(np.random.rand()), float(mx.nd.random.uniform().asscalar())]


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_the_same_seed_gives_the_same_numbers(seed):
    drawn = []
    for number in (seed, seed, 1):
        seed_everything(number)
        drawn.append(draw())
    assert drawn[0] == drawn[1]
    assert all(one != other for one, other in zip(drawn[0], drawn[2]))


def test_pytorchs_generator_is_seeded_if_somebody_imported_torch(monkeypatch):
    given = []
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(manual_seed=given.append))
    monkeypatch.setattr(seeding, "SEEDERS", [])
    seed_everything(7)
    assert given == [7]


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_out_of_range_is_an_error(seed):
    with pytest.raises(ValueError, match=f"from 0 to 4294967295, not {seed}"):
        seed_everything(seed)


def test_torch_is_seeded_if_it_is_imported(monkeypatch):
    """Its loaders shuffle with its own generator, whatever the engine is."""
    given = []
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(manual_seed=given.append))
    seed_everything(2**31 + 5)
    assert given == [5]
    monkeypatch.delitem(sys.modules, "torch")
    seed_everything(1)
    assert given == [5]


def test_an_engine_that_is_imported_later_gets_the_seed(monkeypatch):
    monkeypatch.setattr(seeding, "SEEDERS", [])
    monkeypatch.setattr(seeding, "_last", [])
    given = []
    seeding.add_seeder(given.append)
    assert not given
    seed_everything(2**31 + 5)
    seeding.add_seeder(given.append)
    assert given == [5, 5]
