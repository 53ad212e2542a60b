"""A run that is written amid an epoch and read in a new engine goes on bit for bit."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from multifit import MetricSpec
from multifit.gluon.evaluation import predict_batch
from multifit.gluon.snapshot import differences, read, read_identity, read_random, write

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip

FILES = {
    "devices.json", "figures.json", "figures.npz", "identity.json", "losses.params", "net.params",
    "random.json", "random.npz", "trainers.json", "trainers.npz",
}  # fmt: skip


def resumed(folder: Any, engine: Any, other: Any, batches: Any, train: Any, at: int) -> None:
    """Train one engine, write it at a batch, and read it in the other; train both to the end."""
    train(engine, batches[:at])
    assert write(folder, engine) == []
    train(engine, batches[at:], at)
    np.random.rand(), random.random()
    assert read(folder, other) == []
    train(other, batches[at:], at)


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("at", [1, 4])
def test_it_goes_on_bit_for_bit(tmp_path, make_engine, batches, train, everything, devices, at, hybridized):
    engine, other = make_engine(devices), make_engine(devices)
    for each in (engine, other) if hybridized else ():
        each.model.net.hybridize()
        each.restart()
    resumed(tmp_path, engine, other, batches, train, at)
    assert everything(other) == everything(engine)
    assert other.stages["train"].figures.read() == engine.stages["train"].figures.read()
    assert other.trainers.learning_rates() == engine.trainers.learning_rates()
    assert {path.name for path in tmp_path.iterdir()} - {"devices.npz"} == FILES
    assert (tmp_path / "devices.npz").exists() == (devices > 1)


@pytest.mark.parametrize("on_kvstore", [False, True])
@pytest.mark.parametrize("devices", [1, 2])
def test_so_does_a_trainer_of_the_user_s_own(
    tmp_path, make_engine, make_net, batches, train, everything, devices, on_kvstore
):
    found = []
    for _ in range(2):
        net, losses = make_net(devices)
        params = {**net.collect_params(), **losses["size"].collect_params()}
        options = {"learning_rate": 0.01}
        trainer = gluon.Trainer(params, "adam", options, update_on_kvstore=on_kvstore and devices > 1)
        found.append(make_engine(devices, trainer, net, losses=losses))
    resumed(tmp_path, *found, batches, train, 3)
    assert everything(found[1]) == everything(found[0])


def test_an_engine_can_be_brought_back(tmp_path, make_engine, batches, train, everything):
    engine = make_engine(2)
    train(engine, batches[:3])
    write(tmp_path, engine)
    before, figures = everything(engine), engine.stages["train"].figures.read()
    train(engine, batches[3:], 3)
    assert everything(engine) != before
    engine.restart()
    read(tmp_path, engine)
    assert everything(engine) == before
    train(engine, batches[3:4], 3)
    assert engine.stages["train"].figures.read() != figures


def test_a_run_before_its_first_batch(tmp_path, make_engine, batches, train, everything):
    one, two = make_engine(), make_engine()
    for engine in (one, two):
        engine.model.initialize()
        predict_batch(engine, (batches[0][0],))
    write(tmp_path, one)
    read(tmp_path, two)
    for engine in (one, two):
        train(engine, batches)
    assert everything(one) == everything(two)


def test_random_states_are_read_last_and_by_themselves(tmp_path, make_engine, batches, train):
    engine, other = make_engine(), make_engine()
    train(engine, batches[:1])
    write(tmp_path, engine)
    expected = np.random.rand(), random.random()
    read(tmp_path, other)
    assert (np.random.rand(), random.random()) == expected
    read_random(tmp_path)
    assert (np.random.rand(), random.random()) == expected


def test_gradients_that_wait_for_their_trainer_come_along(tmp_path, make_engine, batches, train, everything):
    found = make_engine(), make_engine()
    for engine in found:
        for parameter in engine.model.parameters.values():
            if parameter.grad_req == "write":
                parameter.grad_req = "add"
    train(found[0], batches[:2])
    _backward(found[0], batches[2])
    write(tmp_path, found[0])
    read(tmp_path, found[1])
    for engine in found:
        train(engine, batches[3:4], 3)
    assert everything(found[0]) == everything(found[1])


def _backward(engine: Any, batch: Any) -> None:
    result = engine.stages["train"].run(engine.splitter("train").split(batch), engine.state)
    mx.autograd.backward(result.objectives)


def test_figures_that_cannot_be_saved_are_named(tmp_path, make_engine, batches, train):
    class Odd(mx.metric.EvalMetric):
        def __init__(self) -> None:
            super().__init__("odd")
            self.kinds = {1, 2}

        def update(self, labels: Any, preds: Any) -> None:
            self.num_inst, self.sum_metric = 1, 2.0

    metrics = [{"odd": MetricSpec(Odd(), "digit", "digit")} for _ in range(2)]
    engine, other = (make_engine(metrics=each) for each in metrics)
    train(engine, batches[:2])
    engine.trainers.get()["heads"].optimizer.queue = {1}
    names = ["trainers.heads.optimizer.queue", "train_odd", "val_odd"]
    assert write(tmp_path, engine) == names
    assert read(tmp_path, other) == names[1:]


def test_another_run_is_refused_before_anything_moves(tmp_path, make_engine, batches, train, everything):
    engine, other = make_engine(), make_engine(2)
    for each in (engine, other):
        train(each, batches[:1])
    write(tmp_path, engine)
    before = everything(other)
    assert differences(tmp_path, engine) == []
    assert read_identity(tmp_path)["devices"] == 1
    assert differences(tmp_path, other) == ["devices: 1 in the checkpoint, 2 here"]
    with pytest.raises(ValueError, match="is another run's:\n  devices: 1 in the checkpoint, 2 here"):
        read(tmp_path, other)
    assert everything(other) == before
