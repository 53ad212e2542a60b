"""Random states are restored; seeds are the same in every run, and differ between its steps and epochs."""

import random
from typing import Any

import numpy as np
import pytest

from multifit.estimator.run import Run
from multifit.gluon.snapshot.tree import read_tree, write_tree
from multifit.seeding import random_state, set_random_state
from multifit.state import RunState

import mxnet as mx  # isort: skip


def reseed(seed: int, epoch: int, step: int) -> None:
    Run(RunState(epoch=epoch, step=step, seed=seed)).reseed()


def reseed_epoch(seed: int, epoch: int) -> None:
    Run(RunState(seed=seed)).seed_epoch(epoch)


def drawn() -> list[bytes]:
    devices = [mx.nd.random.uniform(shape=(4,), ctx=mx.cpu(i)).asnumpy().tobytes() for i in (0, 1)]
    return [*devices, np.random.randn(3).tobytes(), np.float64(random.gauss(0, 1)).tobytes()]


def test_numpys_and_pythons_generators_are_restored(tmp_path):
    np.random.randn(3), random.gauss(0, 1)  # after an odd number of normals, one is cached
    write_tree(tmp_path, "random", random_state())
    expected = [np.random.randn(5), np.random.permutation(9), random.gauss(0, 1), random.random()]
    set_random_state(read_tree(tmp_path, "random"))
    values = [np.random.randn(5), np.random.permutation(9), random.gauss(0, 1), random.random()]
    assert all(np.array_equal(a, b) for a, b in zip(values, expected))


@pytest.mark.parametrize(
    ("seed", "arguments", "all_generators"), [(reseed, (3, 1, 20), False), (reseed_epoch, (3, 1), True)]
)
def test_a_step_seeds_mxnet_on_all_devices_and_an_epoch_all(
    seed: Any, arguments: Any, all_generators: bool
) -> None:
    seed(*arguments)
    before = drawn()
    seed(*arguments)
    same = [a == b for a, b in zip(before, drawn())]
    assert same == [True, True, all_generators, all_generators]


def test_other_steps_and_epochs_have_other_streams():
    seen = set()
    for seed, epoch, step in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 1, 1), (2**32 - 1, 0, 0)]:
        for reseeding in (lambda: reseed(seed, epoch, step), lambda: reseed_epoch(seed, epoch)):  # noqa: B023
            reseeding()
            seen.add(drawn()[0])
    assert len(seen) == 6 + 4  # four pairs of seed and epoch


def test_the_seeds_are_the_same_in_every_version():
    reseed_epoch(7, 2)
    assert np.random.randint(2**31) == 1403647997
    assert random.randrange(2**31) == 1182023559


def test_a_negative_seed_is_an_error():
    with pytest.raises(ValueError, match="non-negative"):
        reseed(-1, 0, 0)
