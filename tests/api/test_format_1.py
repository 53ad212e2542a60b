"""A checkpoint of format 1 still resumes, bit for bit.

``format_1/checkpoints`` was written by commit 25196a4 with `make` and `fit` below, in a run that was killed
after seven of its twelve batches. ``format_1/expected.json`` is how that run ended at that commit without the
kill. All numbers are small multiples of powers of two, so that rounding cannot differ between processors.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import (
    CheckpointHandler,
    Every,
    LossSpec,
    MetricSpec,
    MultiEstimator,
    SpecError,
    TaskSpec,
    TrainerSpec,
)
from multifit.checkpoints import read_manifest
from multifit.checkpoints.integrity import file_hash
from multifit.checkpoints.manifest import encode_manifest
from multifit.metrics import BinaryAccuracy
from multifit.schedules import WarmUp
from multifit.seeding import seed_everything

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip

FOLDER = Path(__file__).with_name("format_1")


class Slower:
    """Sets the learning rate amid the schedule, as PlateauHandler does."""

    def batch_end(self, estimator: Any) -> None:
        if estimator.state.step == 4:
            estimator.trainers["trainer"].set_learning_rate(0.03125)


def largest(labels: Any, outputs: Any) -> float:
    return float(np.abs(labels - outputs).max())


def signs(pred: Any, label: Any) -> Any:
    return label > 0, pred


def make(weight: float = 0.5) -> MultiEstimator:
    net = nn.HybridSequential()
    net.add(nn.Dense(2, in_units=3), nn.Dropout(0.5))
    spec = TaskSpec(
        outputs=["move"],
        labels=["shift"],
        losses={
            "left eye": LossSpec(gluon.loss.L2Loss(), "move", "shift", weight=weight),
            "left ear": LossSpec(gluon.loss.L1Loss(), "move", "shift", weight=2.0),
        },
        metrics={
            "error": MetricSpec(mx.metric.MAE(), "move", "shift"),
            "largest": MetricSpec(largest, "move", "shift", mode="min"),
            "sign": MetricSpec(BinaryAccuracy(), "move", "shift", transform=signs),
        },
    )
    schedule = WarmUp(mx.lr_scheduler.FactorScheduler(5, 0.5, base_lr=0.125), 4)
    trainer = TrainerSpec(".*", "signum", {"learning_rate": 0.125, "momentum": 0.5}, schedule)
    return MultiEstimator(net, spec, trainer, initializer=mx.init.Constant(0.25))


def fit(estimator: MultiEstimator, folder: Path) -> None:
    x = np.random.RandomState(0).randint(-2, 3, (16, 3)).astype("float32")
    data = gluon.data.DataLoader(gluon.data.ArrayDataset(x, x[:, :2] - x[:, 1:]), 4, shuffle=True)
    seed_everything(99)
    keep = CheckpointHandler(folder, Every(3, "batch"), keep_last=1, seed=5)
    estimator.fit(data, epochs=3, event_handlers=[keep, Slower()], resume=folder)


@pytest.fixture(params=["order", "no order"])  # the first commit that resumed, d8990b9, wrote none
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    shutil.copytree(FOLDER / "checkpoints", tmp_path / "checkpoints")
    if request.param == "no order":
        leave_out_order(tmp_path / "checkpoints" / "epoch-0002-step-00000006")
    return tmp_path


def leave_out_order(checkpoint: Path, **run: Any) -> None:
    """Remove the order of the running epoch, and change run.json; the hashes are right."""
    manifest = read_manifest(checkpoint)
    tree = json.loads((checkpoint / "run.json").read_text())
    (checkpoint / "run.json").write_text(json.dumps({**tree, "state": {**tree["state"], **run}}))
    files = {name: entry for name, entry in manifest.files.items() if not name.startswith("order")}
    files["run.json"] = file_hash(checkpoint / "run.json")
    for name in manifest.files.keys() - files.keys():
        (checkpoint / name).unlink()
    (checkpoint / "manifest.json").write_bytes(encode_manifest(replace(manifest, files=files)))


def test_it_resumes_bit_for_bit(folder: Path, log: Any) -> None:
    estimator = make()
    fit(estimator, folder)
    trainer: Any = estimator.trainers["trainer"]
    assert {
        "net": {name: p.data().asnumpy().tolist() for name, p in estimator.parameters.items()},
        "states": [{str(i): s.asnumpy().tolist() for i, s in u.states.items()} for u in trainer._updaters],
        "lr": estimator.learning_rates(),
        "history": json.loads(estimator.history.to_json()),
    } == json.loads((FOLDER / "expected.json").read_text())
    assert "resuming from epoch-0002-step-00000006: epoch 2, batch 3" in log()
    (line,) = [line for line in log() if "saved it" in line]  # NumPy's version is this machine's
    assert line.startswith("multifit before 0.1.0") and line.endswith("not always bit for bit the same")
    assert not any("the checkpoint" in line for line in log())  # nothing begins again


def test_without_an_order_and_a_seed_the_epoch_goes_on(tmp_path: Path, log: Any) -> None:
    shutil.copytree(FOLDER / "checkpoints", tmp_path / "checkpoints")
    leave_out_order(tmp_path / "checkpoints" / "epoch-0002-step-00000006", seed=None)
    estimator = make()
    fit(estimator, tmp_path)
    assert estimator.state.step == 12
    assert "the checkpoint lacks the order of its epoch: some samples may be repeated in it" in log()


def test_it_refuses_another_weight(folder: Path) -> None:
    with pytest.raises(SpecError) as caught:
        fit(make(weight=0.25), folder)
    assert "0.5 x L2Loss" in str(caught.value) and "0.25 x L2Loss" in str(caught.value)
