"""What is computed in a loss's place: equal values and gradients, and only where it is known to be equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MultiEstimator, TaskSpec
from multifit.gluon.execution.cached_graph import CachedGraph
from multifit.gluon.execution.fused_losses import (
    MANY_CLASSES,
    cross_entropy,
    fused_loss,
    negative_log_likelihood,
)
from multifit.gluon.losses import SegmentationCELoss

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon

Softmax = gluon.loss.SoftmaxCrossEntropyLoss
RNG = np.random.RandomState(5)


def maps(classes: int, scale: float = 1.0, dtype: str = "float32") -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
    logits = mx.nd.array(scale * RNG.randn(3, classes, 5, 6))
    return logits, mx.nd.array(RNG.randint(0, classes, (3, 5, 6)), dtype=dtype)


def value_and_gradient(function: Any, logits: Any, *rest: Any) -> tuple[np.ndarray, np.ndarray]:
    logits = logits.copy()
    logits.attach_grad()
    with autograd.record():
        value = function(logits, *rest)
    value.backward()
    return value.asnumpy(), logits.grad.asnumpy()


def assert_equal(ours: Any, theirs: Any, *args: Any) -> None:
    for a, b in zip(value_and_gradient(ours, *args), value_and_gradient(theirs, *args)):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


class Behind(gluon.HybridBlock):
    """A function in a graph."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.hybridize(static_alloc=True)

    def hybrid_forward(self, F: Any, *args: Any) -> Any:
        return self.function(*args)


@pytest.mark.parametrize("classes", [1, 2, 3, 4, MANY_CLASSES - 1, MANY_CLASSES, 21])
@pytest.mark.parametrize("loss", [Softmax(axis=1), Softmax(axis=1, weight=0.3), SegmentationCELoss()])
@pytest.mark.parametrize("hybrid", [False, True])
def test_values_and_gradients_are_those_of_the_loss(classes: int, loss: Any, hybrid: bool) -> None:
    args = maps(classes, scale=8)
    if isinstance(loss, SegmentationCELoss):
        args[1][0, :3] = -1
    function = fused_loss(loss, args)
    assert_equal(Behind(function) if hybrid else function, loss, *args)


@pytest.mark.parametrize("classes", [2, 4, 5])
def test_labels_are_clipped_and_truncated_as_pick_does(classes: int) -> None:
    logits, label = maps(classes)
    label[0, 0, :4] = mx.nd.array([-1, classes, 0.9, -0.5])
    assert_equal(fused_loss(Softmax(axis=1), (logits, label)), Softmax(axis=1), logits, label)


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8"])
@pytest.mark.parametrize("ignore", [None, 0, 2])
def test_labels_of_any_dtype_and_any_ignored_class(dtype: str, ignore: int | None) -> None:
    loss, args = SegmentationCELoss(ignore_label=ignore), maps(4, dtype=dtype)
    assert_equal(fused_loss(loss, args), loss, *args)


@pytest.mark.parametrize("loss", [Softmax(axis=1), SegmentationCELoss()])
def test_sample_weights_are_obeyed(loss: Any) -> None:
    shape = (3, 1, 1, 1) if isinstance(loss, Softmax) else (3,)
    args = *maps(5), mx.nd.array([0.0, 2.0, 0.5]).reshape(shape)
    assert_equal(fused_loss(loss, args), loss, *args)


def test_a_batch_axis_that_is_not_the_first() -> None:
    loss, args = Softmax(axis=1, batch_axis=2), maps(4)
    assert fused_loss(loss, args)(*args).shape == loss(*args).shape
    assert_equal(fused_loss(loss, args), loss, *args)


def test_sequences_with_classes_in_the_middle() -> None:
    logits, label = mx.nd.array(RNG.randn(4, 3, 7)), mx.nd.array(RNG.randint(0, 3, (4, 7)))
    assert_equal(fused_loss(Softmax(axis=1), (logits, label)), Softmax(axis=1), logits, label)


@pytest.mark.parametrize("classes", [3, MANY_CLASSES])
@pytest.mark.parametrize("masked", [[0], [1], [0, 1]])
def test_logits_that_are_masked_by_minus_infinity(classes: int, masked: list[int]) -> None:
    logits, label = maps(classes)
    label[:] = 2
    logits[:, masked] = -np.inf
    own, gradient = value_and_gradient(
        lambda x, y: negative_log_likelihood(mx.nd, x, y, classes), logits, label
    )
    rest = logits.asnumpy()[:, [c for c in range(classes) if c not in masked]].astype("float64")
    expected = np.log(np.exp(rest).sum(axis=1)) - logits.asnumpy()[:, 2]
    np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6)
    assert np.isfinite(gradient).all() and (gradient[:, masked] == 0).all()


def test_extreme_logits_neither_overflow_nor_vanish() -> None:
    logits = mx.nd.array([[[1e4, 0.0]], [[-1e4, 1e-3]], [[0.0, 3e4]]]).transpose((1, 0, 2))
    label = mx.nd.array([[1, 2]])
    own, gradient = value_and_gradient(lambda x, y: negative_log_likelihood(mx.nd, x, y, 3), logits, label)
    np.testing.assert_allclose(own, [[2e4, 0.0]])
    np.testing.assert_allclose(gradient[0], [[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]], atol=1e-6)


class Own(Softmax):
    """A subclass may compute anything."""


def hooked() -> Any:
    loss = Softmax(axis=1)
    loss.register_forward_hook(lambda *_: None)
    return loss


@pytest.mark.parametrize(
    ("loss", "logits", "label"),
    [
        (Softmax(), (2, 3, 4), (2, 3)),
        (Softmax(axis=1, weight=0.3), (2, 3), (2,)),
        (Softmax(axis=1, from_logits=True), (2, 3), (2,)),
        (Softmax(sparse_label=False), (2, 3), (2, 3)),
        (Softmax(axis=0), (2, 3), (3,)),
        (Softmax(batch_axis=1), (2, 3), (2,)),
        (Softmax(), (2, 3), (2, 1)),
        (Own(), (2, 3), (2,)),
        (hooked(), (2, 3), (2,)),
        (Softmax(axis=1, sparse_label=False), (2, 3, 4), (2, 3, 4)),
        (Softmax(axis=1, from_logits=True), (2, 3, 4), (2, 4)),
        (Softmax(axis=1), (2, 3, 4), (2, 1, 4)),
        (SegmentationCELoss(axis=-1), (2, 4, 4, 3), (2, 4, 4)),
        (Own(axis=1), (2, 3, 4), (2, 4)),
        (hooked(), (2, 3, 4), (2, 4)),
        (gluon.loss.L2Loss(), (2, 3, 4), (2, 3, 4)),
        (lambda *args: args[0], (2, 3, 4), (2, 4)),
        (None, (2, 3, 4), (2, 4)),
    ],
)
def test_everything_else_computes_itself(loss: Any, logits: Any, label: Any) -> None:
    assert fused_loss(loss, (mx.nd.ones(logits), mx.nd.zeros(label))) is None


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("hybrid", [False, True])
def test_a_class_for_each_sample(axis: int, dtype: str, hybrid: bool) -> None:
    """Bit for bit, labels that are none included."""
    random, loss = np.random.RandomState(5), Softmax(axis=axis)
    logits = mx.nd.array(random.normal(size=(9, 4)) * 30)
    label = mx.nd.array([0, 1, 2, 3, -1, 7, 2, 1, 0], dtype=dtype)
    function = fused_loss(loss, (logits, label))
    assert function is cross_entropy
    if hybrid:
        function = CachedGraph(lambda F, *args: [cross_entropy(*args)], mx.gluon.ParameterDict).run
    found = []
    for call in (loss, function):
        own = logits.copy()
        own.attach_grad()
        with mx.autograd.record():
            value = call(own, label) if call is not function or not hybrid else call([own, label])[0]
        value.backward(mx.nd.arange(9))
        found.append((value.asnumpy(), own.grad.asnumpy()))
    for one, other in zip(*found):
        np.testing.assert_array_equal(one, other)


def test_half_precision_computes_itself() -> None:
    logits, label = maps(3)
    assert fused_loss(Softmax(axis=1), (logits.astype("float16"), label)) is None


class Pointer(gluon.HybridBlock):
    """Scores the positions of a source of any length: another number of classes in every batch."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.keys = gluon.nn.Dense(4, in_units=4, flatten=False)

    def hybrid_forward(self, F: Any, source: Any, queries: Any) -> Any:
        return F.batch_dot(self.keys(source), queries, transpose_b=True)


def test_the_number_of_classes_may_change_from_batch_to_batch() -> None:
    def batch(classes: int) -> tuple[Any, Any, Any]:
        random = np.random.RandomState(classes)
        return (
            mx.nd.array(random.randn(6, classes, 4)),
            mx.nd.array(random.randn(6, 2, 4)),
            mx.nd.array(random.randint(0, classes, (6, 2))),
        )

    batches = [batch(classes) for classes in (3, 5, 3, 17, 5)]
    nets = Pointer(), Pointer()
    for net in nets:
        mx.random.seed(1)
        net.initialize(mx.init.Xavier())
        net.hybridize()
    spec = TaskSpec(
        inputs=["source", "queries"],
        outputs=["scores"],
        labels=["position"],
        losses={"point": LossSpec(Softmax(axis=1), "scores", "position")},
    )
    trainer = gluon.Trainer(nets[0].collect_params(), "sgd", {"learning_rate": 0.3})
    MultiEstimator(nets[0], spec, trainers=trainer).fit(batches, epochs=3)
    trainer = gluon.Trainer(nets[1].collect_params(), "sgd", {"learning_rate": 0.3})
    for source, queries, position in batches * 3:
        with autograd.record():
            loss = Softmax(axis=1)(nets[1](source, queries), position)
        loss.backward()
        trainer.step(6)
    for a, b in zip(*(net.collect_params().values() for net in nets)):
        np.testing.assert_allclose(a.data().asnumpy(), b.data().asnumpy(), rtol=2e-4, atol=2e-5)
