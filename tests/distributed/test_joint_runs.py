"""Runs of several ranks in a folder: the first one writes, all are refused, and all load."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from multifit import CheckpointHandler, MultiEstimator, SpecError, TaskSpec, TrainerSpec
from multifit.distributed import World
from tests.common.joint_data import FEATURES, loader
from tests.common.nets import sequential
from tests.common.ranks import run_ranks

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip


WRITTEN = [
    "checkpoints", "curves.png", "final.params", "history.json", "log.txt", "plan.json", "plan.txt",
    "settings.json", "tensorboard",
]  # fmt: skip


def make(world: World) -> MultiEstimator:
    net = sequential(gluon.nn.Dense(8, activation="tanh", in_units=FEATURES), gluon.nn.Dense(10, in_units=8))
    net.initialize(mx.init.Constant(0.1 * (1 + world.rank)))
    net.hybridize()
    losses = {"digit": gluon.loss.SoftmaxCrossEntropyLoss()}
    labels = ["digit", "parity", "weight"]
    spec = TaskSpec(
        inputs=["x"], outputs=["digit"], labels=labels, losses=losses, unused=["parity", "weight"]
    )
    return MultiEstimator(net, spec, TrainerSpec(".*", "sgd", {"learning_rate": 0.1}), world=world)


@pytest.fixture(autouse=True)
def small_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multifit.estimator.run_folder.curves", lambda history: Figure(figsize=(0.1, 0.1)))


def test_the_first_rank_writes_and_all_load(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def train(world: World) -> Any:
        made = make(world)
        saving = CheckpointHandler(folder, every=1, monitor="train_loss")
        made.fit(loader(16), epochs=2, event_handlers=[saving], output=folder)
        best = made.best_checkpoint
        other = make(world)
        files = [other.load(folder), other.load(folder, "best"), other.load(folder)]
        values = {name: p.data().asnumpy() for name, p in other.parameters.items()}
        return best, files, values, {name: p.data().asnumpy() for name, p in made.parameters.items()}

    ranks = run_ranks(2, train)
    assert sorted(os.listdir(folder)) == WRITTEN
    best = ranks[0][0]
    for found, files, values, trained in ranks:
        assert found == best and best.name.startswith("epoch-0002")
        assert files == [folder / "final.params", best / "net.params", folder / "final.params"]
        for name, value in values.items():
            np.testing.assert_array_equal(value, trained[name])


def test_all_ranks_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()

    def train(world: World) -> None:
        made = make(world)
        with pytest.raises(ValueError, match="is not empty: give another folder"):
            made.fit(loader(16), epochs=1, output=tmp_path)
        with pytest.raises(SpecError, match=r"limits.seed: 0 on rank 0, 1 on rank 1"):
            made.fit(loader(16), epochs=1, seed=world.rank, output=tmp_path / "run")
        with pytest.raises(ValueError, match="output= writes in one process"):
            made.predict(loader(16), output=tmp_path / "outputs")
        assert made.state.step == 0

    assert run_ranks(2, train) == [None, None]
    assert os.listdir(tmp_path) == ["notes.txt"]
