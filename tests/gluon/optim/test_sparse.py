"""Sparse parameters and gradients: trained, saved and searched as by hand, and refused by name otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import (
    CheckpointHandler,
    LossSpec,
    MultiEstimator,
    TaskSpec,
    TrainerSpec,
)
from multifit.errors import TrainerError

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

from tests.common.grids import ONE, TWO
from tests.common.hand_loop import SILENT
from tests.common.specs import L2

WORDS, UNITS = 12, 3
SPARSE_WEIGHT = gluon.contrib.nn.SparseEmbedding
OPTIMIZERS = {
    "sgd": {"learning_rate": 0.1, "momentum": 0.9},
    "adam": {"learning_rate": 0.1},
    "adagrad": {"learning_rate": 0.1},
}


def sparse_gradient(*shape: int) -> Any:
    return nn.Embedding(*shape, sparse_grad=True)


class Net(gluon.Block):
    """An embedding and a dense layer, with the same values whenever it is made."""

    def __init__(self, embedding: Any, contexts: Any) -> None:
        super().__init__()
        self.words, self.head = embedding(WORDS, UNITS), nn.Dense(1, in_units=2 * UNITS)
        mx.random.seed(2)
        self.initialize(mx.init.Normal(0.5), ctx=contexts)

    def forward(self, x: Any) -> Any:
        return self.head(self.words(x))


def batches(count: int = 4) -> list[Any]:
    random = np.random.RandomState(1)
    return [(random.randint(0, WORDS, (8, 2)), random.randn(8, 1).astype("float32")) for _ in range(count)]


def values(net: Any) -> dict[str, np.ndarray]:
    """Return all parameters; those that are sparse from their trainer."""
    return {name: p._reduce().asnumpy() for name, p in net._collect_params_with_prefix().items()}


def assert_same(net: Any, other: Any, **tolerance: float) -> None:
    expected = values(other)
    for name, value in values(net).items():
        np.testing.assert_allclose(value, expected[name], err_msg=name, **tolerance)


def by_hand(embedding: Any, contexts: Any, optimizer: str, clip_norm: float | None = None) -> Any:
    net = Net(embedding, contexts)
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


EMBEDDINGS = {"weight": SPARSE_WEIGHT, "gradient": sparse_gradient}
DEVICES = {"one": ONE, "two": TWO}
# Every pair of settings: an optimizer with each kind of embedding, and so on.
TRAINED = [
    ("sgd", "weight", "one", "spec"), ("adam", "weight", "one", "trainer"),
    ("adam", "weight", "two", "spec"), ("adagrad", "weight", "two", "trainer"),
    ("adagrad", "gradient", "one", "spec"), ("sgd", "gradient", "one", "trainer"),
    ("sgd", "gradient", "two", "spec"), ("adam", "gradient", "two", "trainer"),
]  # fmt: skip
RESUMED = [
    ("sgd", "weight", "one"), ("adam", "weight", "two"), ("adagrad", "weight", "one"),
    ("sgd", "gradient", "two"), ("adam", "gradient", "one"), ("adagrad", "gradient", "two"),
]  # fmt: skip


@pytest.mark.parametrize(("optimizer", "kind", "devices", "by"), TRAINED)
def test_trains_as_by_hand(optimizer: str, kind: str, devices: str, by: str) -> None:
    embedding, contexts = EMBEDDINGS[kind], DEVICES[devices]
    net = Net(embedding, contexts)
    estimator = estimator_of(net, optimizer, contexts)
    if by == "trainer":
        trainer = gluon.Trainer(net.collect_params(), optimizer, dict(OPTIMIZERS[optimizer]))
        estimator = MultiEstimator(net, L2, trainer, context=contexts)
    estimator.check(batches())
    before = values(net)
    estimator.fit(batches(), batches(1), epochs=1, event_handlers=SILENT)
    assert_same(net, by_hand(embedding, contexts, optimizer), rtol=1e-5, atol=1e-6)
    assert all((values(net)[name] != value).any() for name, value in before.items())


def test_a_net_that_is_on_one_device_trains_on_others() -> None:
    net = Net(SPARSE_WEIGHT, ONE)
    estimator_of(net, contexts=TWO).fit(batches(), epochs=1, event_handlers=SILENT)
    assert_same(net, by_hand(SPARSE_WEIGHT, TWO, "adam"), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("embedding", EMBEDDINGS.values(), ids=EMBEDDINGS)
def test_clips_as_by_hand(embedding: Any) -> None:
    net = Net(embedding, ONE)
    estimator_of(net, clip_norm=0.05).fit(batches(), epochs=1, event_handlers=SILENT)
    assert_same(net, by_hand(embedding, ONE, "adam", 0.05), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("embedding", EMBEDDINGS.values(), ids=EMBEDDINGS)
def test_trainers_of_their_own_are_checked_loss_by_loss(embedding: Any) -> None:
    net = Net(embedding, ONE)
    losses = {name: LossSpec(L2, "out", "y") for name in ("one", "other")}
    spec = TaskSpec(inputs=["x"], outputs="out", labels=["y"], losses=losses)
    trainers = {name: TrainerSpec(f"{name}.*", "adam") for name in ("words", "head")}
    before = net.head.weight.data().asnumpy()
    MultiEstimator(net, spec, trainers).check(batches())
    np.testing.assert_array_equal(net.head.weight.data().asnumpy(), before)


def test_a_net_is_evaluated_before_it_is_trained() -> None:
    net = Net(SPARSE_WEIGHT, ONE)
    x, y = batches(1)[0]
    output = estimator_of(net).predict(x)["output"]
    np.testing.assert_allclose(
        estimator_of_same(net).evaluate([(x, y)])["loss"], ((output - y) ** 2).mean() / 2, 1e-5
    )


def estimator_of_same(net: Any) -> MultiEstimator:
    """Return a second estimator with the trainer that has the net's sparse parameters."""
    return MultiEstimator(net, L2, net.words.weight._trainer)


@pytest.mark.parametrize(("optimizer", "kind", "devices"), RESUMED)
def test_resumes_exactly(optimizer: str, kind: str, devices: str, tmp_path: Path) -> None:
    embedding, contexts = EMBEDDINGS[kind], DEVICES[devices]

    def fit(folder: Path, epochs: int, resume: Any = None) -> Any:
        net = Net(embedding, contexts)
        handlers = [CheckpointHandler(folder, 1, seed=1), *SILENT]
        estimator_of(net, optimizer, contexts).fit(batches(), None, epochs, None, handlers, resume)
        return net

    whole = fit(tmp_path / "whole", 3)
    fit(tmp_path / "part", 2)
    assert_same(fit(tmp_path / "part", 3, tmp_path / "part"), whole, rtol=0, atol=0)


def test_tools_leave_everything_as_it_was() -> None:
    whole, net = Net(SPARSE_WEIGHT, ONE), Net(SPARSE_WEIGHT, ONE)
    estimators = estimator_of(whole), estimator_of(net)
    for estimator in estimators:
        estimator.fit(batches(), epochs=1, event_handlers=SILENT)
    estimators[1].find_learning_rate(batches(), batches=10)
    estimators[1].profile(batches(), batches=2)
    assert_same(net, whole, rtol=0, atol=0)
    for estimator in estimators:
        estimator.fit(batches(), epochs=1, event_handlers=SILENT)
    assert_same(net, whole, rtol=0, atol=0)


def options_of(**options: Any) -> Any:
    return lambda net: gluon.Trainer(net.collect_params(), "sgd", **options)


SPEC = TrainerSpec(".*", "sgd")
REFUSED = {
    "update_on_kvstore": (options_of(update_on_kvstore=False), ONE, (),
        'trainers: holds row_sparse parameters, "words.weight": MXNet updates them on a kvstore; leave '
        "kvstore= and update_on_kvstore= out"),
    "kvstore": (options_of(kvstore=None), ONE, (), "MXNet updates them on a kvstore; leave"),
    "clip_norm": (lambda net: TrainerSpec(".*", "sgd", clip_norm=1.0), TWO, (), "leave clip_norm out"),
    "frozen": (lambda net: SPEC, ONE, ("words.*",),
        'frozen: MXNet reads row_sparse parameters through a trainer only: "words.weight"; leave them to a '
        "trainer, and set their lr_mult to 0"),
    "optimizer": (lambda net: TrainerSpec(".*", "groupadagrad"), ONE, (),
        "groupadagrad cannot make a step with its options on a parameter of 1 axis: AssertionError"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_by_name(case: str) -> None:
    trainers, contexts, frozen, message = REFUSED[case]
    net = Net(SPARSE_WEIGHT, contexts)
    estimator = MultiEstimator(net, L2, trainers(net), context=contexts, frozen=frozen)
    for run in (estimator.check, lambda data: estimator.fit(data, epochs=1), estimator.evaluate):
        with pytest.raises(TrainerError, match=message.replace("(", r"\(")):
            run(batches())


def test_what_becomes_trainable_is_trained_on_a_kvstore() -> None:
    net, hand = Net(SPARSE_WEIGHT, ONE), Net(SPARSE_WEIGHT, ONE)
    estimator = estimator_of(net)
    trainer = gluon.Trainer(hand.collect_params(), "adam", dict(OPTIMIZERS["adam"]))
    for request in ("null", "write"):
        net.head.bias.grad_req = hand.head.bias.grad_req = request
        estimator.fit(batches(), epochs=1, event_handlers=SILENT)
        for x, y in batches():
            with autograd.record():
                loss = L2(hand(nd.array(x)), nd.array(y))
            loss.backward()
            trainer.step(len(x))
        assert_same(net, hand, rtol=1e-5, atol=1e-6)


def test_a_second_trainer_is_refused() -> None:
    net = Net(SPARSE_WEIGHT, ONE)
    estimator = estimator_of(net)
    estimator.check(batches())
    with pytest.raises(
        TrainerError, match="MXNet binds them to one trainer, and they already have one; give that"
    ):
        estimator_of(net).check(batches())
    MultiEstimator(net, L2, estimator.trainers["trainer"]).check(batches())
