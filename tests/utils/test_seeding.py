"""seed_everything seeds all random generators."""

import random
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest

from multifit.utils import seeding
from multifit.utils.seeding import seed_everything


def by_order(seed):
    seeding.seed_order(seed)
    return [random.random(), np.random.rand()]


def by_everything(seed):
    seed_everything(seed)
    drawn = [random.random(), np.random.rand()]
    if find_spec("mxnet"):
        from mxnet import nd

        drawn.append(nd.random.uniform().asscalar())
    return drawn


@pytest.mark.parametrize("draw", [by_order, by_everything])
@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_the_same_seed_gives_the_same_numbers(draw, seed):
    first, again, other = draw(seed), draw(seed), draw(1)
    assert first == again and all(one != two for one, two in zip(first, other))


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_out_of_range_is_an_error(seed):
    with pytest.raises(ValueError, match=f"from 0 to 4294967295, not {seed}"):
        seed_everything(seed)


def test_torch_and_engines_are_seeded_once_they_are_imported(monkeypatch):
    """Torch's loaders shuffle with its own generator, whatever the engine is."""
    given = []
    monkeypatch.setattr(seeding, "SEEDERS", [])
    monkeypatch.setattr(seeding, "_last", [])
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(manual_seed=given.append))
    seeding.add_seeder(given.append)
    assert not given
    seed_everything(2**31 + 5)
    assert given == [5, 5]
    seeding.add_seeder(given.append)  # of an engine that is imported later
    assert given == [5, 5, 5]
    monkeypatch.delitem(sys.modules, "torch")
    seed_everything(7)
    assert given == [5, 5, 5, 7, 7]


class FakeTorch:
    """Has the generators of PyTorch: one of the CPU, and one of each GPU."""

    def __init__(self, gpus: int) -> None:
        self.states, self.default_generator = [np.array([number]) for number in range(1 + gpus)], self
        self.cuda = SimpleNamespace(
            is_available=lambda: gpus > 0,
            is_initialized=lambda: gpus > 0,
            device_count=lambda: gpus,
            get_rng_state_all=lambda: [SimpleNamespace(numpy=each.copy) for each in self.states[1:]],
            set_rng_state=lambda state, number: self.states[1 + number].__setitem__(..., state),
        )
        self.tensor = lambda values, device: np.array(values)

    def get_rng_state(self) -> SimpleNamespace:
        return SimpleNamespace(numpy=self.states[0].copy)

    def set_rng_state(self, state: np.ndarray) -> None:
        self.states[0][...] = state

    manual_seed = set_rng_state


@pytest.mark.parametrize("gpus", [0, 2])
def test_the_random_state_holds_that_of_torch_if_it_is_imported(monkeypatch, gpus):
    torch = FakeTorch(gpus)
    monkeypatch.setitem(sys.modules, "torch", torch)
    state = seeding.random_state()
    assert ("cuda" in state) == (gpus > 0)
    seeding.seed_order(9)
    for each in torch.states[1:]:
        each += 5
    with seeding.preserve_rng():
        torch.manual_seed(3)
    assert torch.states[0] == 9
    seeding.set_random_state(state)
    assert [int(each) for each in map(np.squeeze, torch.states)] == [*range(1 + gpus)]
    monkeypatch.delitem(sys.modules, "torch")
    assert {*seeding.random_state()} == {"numpy", "python"}
    seeding.set_random_state(state)
