"""Sparse gradients are trained and saved as by hand; parameters of sparse rows are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import CheckpointHandler, LossSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.utils.errors import SpecError

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, nd  # isort: skip
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


def by_hand(contexts: Any, optimizer: str, clip_norm: float | None) -> Any:
    net = Net(contexts)
    trainer = gluon.Trainer(net.collect_params(), optimizer, dict(OPTIMIZERS[optimizer]))
    for x, y in batches():
        parts = [gluon.utils.split_and_load(nd.array(a, dtype=a.dtype), contexts) for a in (x, y)]
        with autograd.record():
            losses = [L2(net(a), b) for a, b in zip(*parts)]
        autograd.backward(losses)
        if clip_norm is not None:
            gradients = [p.list_grad()[0] for p in net.collect_params().values()]
            gluon.utils.clip_global_norm(gradients, clip_norm * len(x))
        trainer.step(len(x))
    return net


def estimator_of(net: Any, optimizer: str = "adam", contexts: Any = None, **options: Any) -> MultiEstimator:
    trainer = TrainerSpec(".*", optimizer, OPTIMIZERS[optimizer], **options)
    return MultiEstimator(net, L2, trainer, context=contexts)


@pytest.mark.parametrize(
    ("optimizer", "contexts", "own", "clip_norm"),
    [
        ("adagrad", ONE, False, None),
        ("sgd", TWO, False, None),
        ("adam", TWO, True, None),
        ("adam", ONE, False, 0.05),
    ],
)
def test_trains_as_by_hand(optimizer: str, contexts: Any, own: bool, clip_norm: float | None) -> None:
    net = Net(contexts)
    estimator = estimator_of(net, optimizer, contexts, clip_norm=clip_norm)
    if own:
        trainer = gluon.Trainer(net.collect_params(), optimizer, dict(OPTIMIZERS[optimizer]))
        estimator = MultiEstimator(net, L2, trainer, context=contexts)
    before = snapshot(net)
    estimator.check(batches())
    assert_unchanged(net, before)
    estimator.fit(batches(), batches(1), epochs=1, event_handlers=SILENT)
    assert_same_parameters(net, by_hand(contexts, optimizer, clip_norm))


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
