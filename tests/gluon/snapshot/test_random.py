"""Random states are restored; seeds are the same in every run, and differ between its steps and epochs."""

import random
from pathlib import Path

import numpy as np
import pytest

from multifit.estimator.run import Run
from multifit.gluon.snapshot.snapshot import MXNetTrees
from multifit.handlers.state import RunState
from multifit.utils.seeding import random_state, set_random_state

import mxnet as mx  # isort: skip


def drawn() -> list[bytes]:
    devices = [mx.nd.random.uniform(shape=(4,), ctx=mx.cpu(i)).asnumpy().tobytes() for i in (0, 1)]
    return [*devices, np.random.randn(3).tobytes(), np.float64(random.gauss(0, 1)).tobytes()]


def test_numpys_and_pythons_generators_are_restored(tmp_path: Path) -> None:
    np.random.randn(3), random.gauss(0, 1)  # after an odd number of normals, one is cached
    MXNetTrees().write(tmp_path, "random", random_state())
    expected = drawn()[2:]
    set_random_state(MXNetTrees().read(tmp_path, "random"))
    assert drawn()[2:] == expected


def test_a_step_seeds_mxnet_on_all_devices_and_an_epoch_all() -> None:
    seen = []
    for seed, epoch, step in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 1, 1), (2**32 - 1, 0, 0)]:
        run = Run(RunState(epoch=epoch, step=step, seed=seed))
        for reseeding, all_generators in ((run.reseed, False), (lambda: run.seed_epoch(epoch), True)):  # noqa: B023
            reseeding()
            before = drawn()
            reseeding()
            same = [a == b for a, b in zip(before, drawn())]
            assert same == [True, True, all_generators, all_generators]
            seen.append(before[0])
    assert len(set(seen)) == 6 + 4  # other steps and epochs have other streams: four pairs of seed and epoch


def test_the_seeds_are_the_same_in_every_version() -> None:
    Run(RunState(seed=7)).seed_epoch(2)
    assert (np.random.randint(2**31), random.randrange(2**31)) == (1403647997, 1182023559)
    with pytest.raises(ValueError, match="non-negative"):
        Run(RunState(seed=-1)).reseed()
