"""A run that is written in the middle of an epoch and read in a new estimator continues bit for bit."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MetricSpec, TrainerSpec
from tests.api.resume_runs import values
from tests.common.grids import TWO
from tests.common.nets import hybridized, normed_heads
from tests.common.specs import CE

from .runs import BiasedL2, begin, figures, make_batches, make_estimator, train

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip

FILES = {
    "devices.json", "figures.json", "figures.npz", "identity.json", "labels.json", "losses.params",
    "net.params", "random.json", "random.npz", "trainers.json", "trainers.npz",
}  # fmt: skip


def interrupt(folder: Path, whole: Any, resumed: Any, batches: Any, at: int) -> None:
    """Train one estimator, write it at a batch, and read it in the other; train both to the end."""
    train(whole, batches[:at])
    whole._engine.snapshot.write(folder)
    train(whole, batches[at:], at)
    np.random.rand(), random.random()
    begin(resumed)
    assert resumed._engine.snapshot.read(folder) == []
    train(resumed, batches[at:], at)
    assert values(resumed) == values(whole)
    assert figures(resumed).read() == figures(whole).read()


@pytest.mark.parametrize(
    ("devices", "hybrid", "at", "weight", "dtype"),
    [
        (1, False, 4, 0.25, "float32"),
        (2, True, 1, 0.5, "float64"),
        (3, True, 2, lambda state: 0.5, "float32"),
    ],
    ids=["one", "two", "three"],
)
def test_it_continues_bit_for_bit(
    tmp_path: Path, devices: int, hybrid: bool, at: int, weight: Any, dtype: str
) -> None:
    size = LossSpec(BiasedL2(), weight=weight, normalize_by=lambda slots: slots["size"] != 0)
    nets = [hybridized(normed_heads(), hybrid) for _ in range(2)]
    for block in (*nets, size.fn):
        block.cast(dtype)
    losses = {"digit": CE, "size": size}
    whole, resumed = (make_estimator(devices, net=net, losses=losses) for net in nets)
    interrupt(tmp_path, whole, resumed, make_batches(), at)
    assert resumed.learning_rates() == whole.learning_rates()
    assert {path.name for path in tmp_path.iterdir()} - {"devices.npz"} == FILES
    assert (tmp_path / "devices.npz").exists() == (devices > 1)


def test_a_trainer_built_by_the_user_continues_bit_for_bit(tmp_path: Path) -> None:
    estimators = []
    for _ in range(2):
        net, loss = normed_heads(), BiasedL2()
        for block in (net, loss):
            block.initialize(ctx=TWO)
        parameters = {**net.collect_params(), **loss.collect_params()}
        trainer = gluon.Trainer(parameters, "adam", {"learning_rate": 0.01})
        estimators.append(make_estimator(2, trainer, net, losses={"digit": CE, "size": loss}))
    interrupt(tmp_path, *estimators, make_batches(), 3)


class OwnOptimizer(mx.optimizer.SGD):
    """A user's optimizer."""


def test_what_starts_anew_is_named(tmp_path: Path) -> None:
    trainers = (TrainerSpec(".*", OwnOptimizer(learning_rate=0.1)) for _ in range(2))
    one, other = (make_estimator(trainers=each) for each in trainers)
    train(one, make_batches([8]))
    one._engine.snapshot.write(tmp_path)
    assert other._engine.snapshot.read(tmp_path) == [
        'trainers["trainer"]: OwnOptimizer has no state_dict and load_state_dict, so only numbers among its '
        "attributes are restored"
    ]


LABELS = {"flat": (8,), "column": (8, 1)}  # on the device, F1 takes flat labels only


@pytest.mark.parametrize(
    ("kinds", "at"), [("flat column flat", 1), ("flat column flat", 2), ("column flat", 1)]
)
def test_a_metric_whose_sums_left_the_device_continues(tmp_path: Path, kinds: str, at: int) -> None:
    batches = [
        (np.random.randn(8, 4).astype("float32"), np.random.randint(0, 2, LABELS[kind]).astype("float32"))
        for kind in kinds.split()
    ]
    declared = {
        "inputs": ["data"], "outputs": ["o"], "labels": ["l"], "losses": {"ce": LossSpec(CE, "o", "l")},
        "metrics": {"f1": MetricSpec(mx.metric.F1(), "o", "l")},
    }  # fmt: skip
    nets = [nn.Dense(2, in_units=4), nn.Dense(2, in_units=4)]
    interrupt(
        tmp_path, *(make_estimator(1, TrainerSpec(".*"), each, **declared) for each in nets), batches, at
    )
