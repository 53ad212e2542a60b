"""Gluon's SymbolBlock, imported from an exported file: its parameters bear the flat names of the file."""

from __future__ import annotations

import numpy as np
import pytest

from multifit import LossSpec, MultiEstimator, TaskSpec, TrainerSpec

import mxnet as mx  # isort: skip
from mxnet import gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip


class TwoHeads(nn.HybridBlock):
    def __init__(self) -> None:
        super().__init__(prefix="two_")
        with self.name_scope():
            self.body = nn.Dense(16, activation="tanh", prefix="body_")
            self.kind, self.place = nn.Dense(2, prefix="kind_"), nn.Dense(1, prefix="place_")

    def hybrid_forward(self, F, point):
        features = self.body(point)
        return self.kind(features), self.place(features)


def batches():
    random = np.random.RandomState(0)
    point = random.randn(128, 3).astype("float32")
    slots = point, (point[:, 0] > 0).astype("int32"), point[:, 1:2] + point[:, 2:]
    columns = [nd.array(slot, dtype=slot.dtype) for slot in slots]
    return [tuple(column[start : start + 32] for column in columns) for start in range(0, 128, 32)]


def spec():
    return TaskSpec(
        inputs=["point"],
        outputs=["kind", "place"],
        labels=["kind", "place"],
        losses={
            "kind": gluon.loss.SoftmaxCrossEntropyLoss(),
            "place": LossSpec(gluon.loss.L2Loss(), weight=0.5),
        },
    )


@pytest.fixture
def both(tmp_path):
    """Return a net, and the same net exported and imported again."""
    net = TwoHeads()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    net(batches()[0][0])
    net.export(str(tmp_path / "net"))
    files = str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params")
    return net, gluon.SymbolBlock.imports(*files)


def trainers(pattern):
    return TrainerSpec(pattern, "sgd", {"learning_rate": 0.1, "momentum": 0.9})


@pytest.mark.parametrize("hybridized", [False, True])
def test_it_learns_as_the_net_that_it_came_from(both, hybridized):
    net, imported = both
    if hybridized:
        imported.hybridize()
    first = MultiEstimator(net, spec(), trainers(".*")).fit(batches(), epochs=5)
    second = MultiEstimator(imported, spec(), trainers(".*")).fit(batches(), epochs=5)
    assert second["train_loss"][-1] < 0.5 * second["train_loss"][0]
    assert second["train_loss"] == pytest.approx(first["train_loss"], rel=1e-4)


def test_its_parameters_are_chosen_by_their_flat_names(both):
    _, imported = both
    before = {name: value.data().asnumpy() for name, value in imported.collect_params().items()}
    estimator = MultiEstimator(imported, spec(), trainers("(kind|place)_.*"), frozen=["body_.*"])
    estimator.fit(batches(), epochs=1)
    moved = {
        name
        for name, value in imported.collect_params().items()
        if not np.array_equal(value.data().asnumpy(), before[name])
    }
    assert moved == {"two_kind_weight", "two_kind_bias", "two_place_weight", "two_place_bias"}
