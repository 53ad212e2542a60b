"""Sparse gradients are trained and saved as by hand; parameters of sparse rows are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import CheckpointHandler, LossSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.utils.errors import SpecError

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip

from tests.common.compare import assert_same_parameters, assert_unchanged, snapshot
from tests.common.grids import ONE, TWO
from tests.common.hand_loop import SILENT
from tests.common.specs import L2

WORDS, UNITS = 12, 3
OPTIMIZERS = {
    "sgd": {"learning_rate": 0.1, "momentum": 0.9},
    "adam": {"learning_rate": 0.1},
    "adagrad": {"learning_rate": 0.1},
}


class Net(gluon.Block):
    """An embedding and a dense layer, with the same values whenever it is made."""

    def __init__(self, contexts: Any) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, UNITS, sparse_grad=True), nn.Dense(1, in_units=2 * UNITS)
        mx.random.seed(2)
        self.initialize(mx.init.Normal(0.5), ctx=contexts)

    def forward(self, x: Any) -> Any:
        return self.head(self.words(x))


def batches(count: int = 4) -> list[Any]:
    random = np.random.RandomState(1)
    return [(random.randint(0, WORDS, (8, 2)), random.randn(8, 1).astype("float32")) for _ in range(count)]


def estimator_of(net: Any, optimizer: str = "adam", contexts: Any = None, **options: Any) -> MultiEstimator:
    trainer = TrainerSpec(".*", optimizer, OPTIMIZERS[optimizer], **options)
    return MultiEstimator(net, L2, trainer, context=contexts)


def test_trainers_of_their_own_are_checked_loss_by_loss() -> None:
    net = Net(ONE)
    losses = {name: LossSpec(L2, "out", "y") for name in ("one", "other")}
    spec = TaskSpec(inputs=["x"], outputs="out", labels=["y"], losses=losses)
    trainers = {name: TrainerSpec(f"{name}.*", "adam") for name in ("words", "head")}
    before = snapshot(net)
    MultiEstimator(net, spec, trainers).check(batches())
    assert_unchanged(net, before)


def test_resumes_exactly(tmp_path: Path) -> None:
    def fit(folder: Path, epochs: int, resume: Any = None) -> Any:
        net, handlers = Net(TWO), [CheckpointHandler(folder, 1, seed=1), *SILENT]
        estimator_of(net, "adam", TWO).fit(batches(), None, epochs, None, handlers, resume)
        return net

    whole = fit(tmp_path / "whole", 3)
    fit(tmp_path / "part", 2)
    assert_same_parameters(fit(tmp_path / "part", 3, tmp_path / "part"), whole, rtol=0, atol=0)


def test_parameters_of_sparse_rows_are_refused_by_name() -> None:
    net = gluon.nn.Sequential()
    net.add(gluon.contrib.nn.SparseEmbedding(WORDS, UNITS), nn.Dense(1))
    net.initialize()
    estimator = MultiEstimator(net, L2)
    for run in (estimator.check, lambda data: estimator.fit(data, epochs=1), estimator.evaluate):
        with pytest.raises(SpecError, match=r'"0.weight" has row_sparse values.*use nn.Embedding\('):
            run(batches())
