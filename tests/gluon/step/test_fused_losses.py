"""Fused losses have the values and gradients of the losses that they replace; others are not replaced."""

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, TaskSpec
from multifit.gluon.losses import SegmentationCELoss
from multifit.gluon.step.cached_graph import CachedGraph
from multifit.gluon.step.fused_losses import (
    MANY_CLASSES,
    cross_entropy,
    fused_loss,
    negative_log_likelihood,
)
from tests.common.hand_loop import assert_trains_as_by_hand

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, nd

Softmax = gluon.loss.SoftmaxCrossEntropyLoss
RNG = np.random.RandomState(5)


def maps(classes: int, scale: float = 1.0, dtype: str = "float32") -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
    logits = mx.nd.array(scale * RNG.randn(3, classes, 5, 6))
    return logits, mx.nd.array(RNG.randint(0, classes, (3, 5, 6)), dtype=dtype)


def value_and_gradient(function: Any, logits: Any, *rest: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the values, and the gradient by logits, where the gradients by values are 1, 2, 3, ..."""
    logits = logits.copy()
    logits.attach_grad()
    with autograd.record():
        value = function(logits, *rest)
    value.backward(nd.arange(1, value.size + 1).reshape(value.shape))
    return value.asnumpy(), logits.grad.asnumpy()


def in_a_graph(function: Any) -> Any:
    graph = CachedGraph(lambda F, *args: [function(*args)], gluon.ParameterDict)
    return lambda *args: graph.run(args)[0]


def check(loss: Any, *args: Any, hybrid: bool = False, exact: bool = False) -> None:
    """Compare what replaces a loss with the loss itself."""
    function = fused_loss(loss, args)
    results = [
        value_and_gradient(each, *args) for each in (in_a_graph(function) if hybrid else function, loss)
    ]
    for a, b in zip(*results):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0 if exact else 2e-5, atol=0 if exact else 2e-6)


LOSSES = [Softmax(axis=1), Softmax(axis=1, weight=0.3), SegmentationCELoss()]


@pytest.mark.parametrize(
    ("classes", "hybrid"),
    [(1, True), (2, False), (3, True), (MANY_CLASSES - 1, False), (MANY_CLASSES, True), (21, False)],
)
def test_values_and_gradients_are_those_of_the_loss(classes: int, hybrid: bool) -> None:
    for loss in LOSSES:
        logits, label = maps(classes, scale=8)
        if isinstance(loss, SegmentationCELoss):
            label[0, :3] = -1
        check(loss, logits, label, hybrid=hybrid)


def invalid_labels(classes: int) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
    """Return maps with labels that `pick` clips and truncates."""
    logits, label = maps(classes)
    label[0, 0, :4] = nd.array([-1, classes, 0.9, -0.5])
    return logits, label


SAMPLE_WEIGHTS = nd.array([0.0, 2.0, 0.5])
OPTIONS = {
    **{f"invalid labels of {n} classes": (Softmax(axis=1), invalid_labels(n)) for n in (2, 4, 5)},
    "nothing ignored": (SegmentationCELoss(ignore_label=None), maps(4)),
    "int32, 0 ignored": (SegmentationCELoss(ignore_label=0), maps(4, dtype="int32")),
    "uint8, 2 ignored": (SegmentationCELoss(ignore_label=2), maps(4, dtype="uint8")),
    "uint8, nothing ignored": (SegmentationCELoss(ignore_label=None), maps(4, dtype="uint8")),
    "sample weights": (Softmax(axis=1), (*maps(5), SAMPLE_WEIGHTS.reshape((3, 1, 1, 1)))),
    "sample weights of maps": (SegmentationCELoss(), (*maps(5), SAMPLE_WEIGHTS)),
    "another batch axis": (Softmax(axis=1, batch_axis=2), maps(4)),
    "sequences": (Softmax(axis=1), (nd.array(RNG.randn(4, 3, 7)), nd.array(RNG.randint(0, 3, (4, 7))))),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options_and_labels_of_every_kind(case: str) -> None:
    loss, args = OPTIONS[case]
    check(loss, *args)


@pytest.mark.parametrize(
    ("axis", "dtype", "hybrid"),
    [(1, "float32", True), (1, "int32", False), (-1, "float32", False), (-1, "int32", True)],
)
def test_a_class_for_each_sample(axis: int, dtype: str, hybrid: bool) -> None:
    """Bit for bit, also for labels that are not valid."""
    logits = nd.array(RNG.normal(size=(9, 4)) * 30)
    label = nd.array([0, 1, 2, 3, -1, 7, 2, 1, 0], dtype=dtype)
    assert fused_loss(Softmax(axis=axis), (logits, label)) is cross_entropy
    check(Softmax(axis=axis), logits, label, hybrid=hybrid, exact=True)


@pytest.mark.parametrize("classes", [3, MANY_CLASSES])
@pytest.mark.parametrize("masked", [[0], [1], [0, 1]])
def test_logits_that_are_masked_by_minus_infinity(classes: int, masked: list[int]) -> None:
    logits, label = maps(classes)
    label[:] = 2
    logits[:, masked] = -np.inf
    values, gradient = value_and_gradient(
        lambda x, y: negative_log_likelihood(mx.nd, x, y, classes), logits, label
    )
    rest = logits.asnumpy()[:, [c for c in range(classes) if c not in masked]].astype("float64")
    expected = np.log(np.exp(rest).sum(axis=1)) - logits.asnumpy()[:, 2]
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
    assert np.isfinite(gradient).all() and (gradient[:, masked] == 0).all()


def test_extreme_logits_neither_overflow_nor_vanish() -> None:
    logits = mx.nd.array([[[1e4, 0.0]], [[-1e4, 1e-3]], [[0.0, 3e4]]]).transpose((1, 0, 2))
    label = mx.nd.array([[1, 2]])
    values, gradient = value_and_gradient(lambda x, y: negative_log_likelihood(mx.nd, x, y, 3), logits, label)
    np.testing.assert_allclose(values, [[2e4, 0.0]])
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
        (Softmax(), (2, 3, 4), (2, 3)), (Softmax(), (2, 3), (2, 1)), (Softmax(axis=1), (2, 3, 4), (2, 1, 4)),
        (Softmax(axis=1, weight=0.3), (2, 3), (2,)), (Softmax(axis=0), (2, 3), (3,)),
        (Softmax(batch_axis=1), (2, 3), (2,)), (Softmax(axis=1, from_logits=True), (2, 3), (2,)),
        (Softmax(axis=1, from_logits=True), (2, 3, 4), (2, 4)), (Softmax(sparse_label=False), (2, 3), (2, 3)),
        (Softmax(axis=1, sparse_label=False), (2, 3, 4), (2, 3, 4)), (Own(), (2, 3), (2,)),
        (hooked(), (2, 3), (2,)), (SegmentationCELoss(axis=-1), (2, 4, 4, 3), (2, 4, 4)),
        (gluon.loss.L2Loss(), (2, 3, 4), (2, 3, 4)), (lambda *args: args[0], (2, 3, 4), (2, 4)),
    ],
    ids=map(str, range(15)),
)  # fmt: skip
def test_no_other_loss_is_replaced(loss: Any, logits: Any, label: Any) -> None:
    assert fused_loss(loss, (mx.nd.ones(logits), mx.nd.zeros(label))) is None


def test_half_precision_is_not_replaced() -> None:
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
    def batch(classes: int) -> tuple[np.ndarray, ...]:
        random = np.random.RandomState(classes)
        arrays = random.randn(6, classes, 4), random.randn(6, 2, 4), random.randint(0, classes, (6, 2))
        return tuple(array.astype("float32") for array in arrays)

    losses = {"point": LossSpec(Softmax(axis=1), "scores", "position")}
    spec = TaskSpec(outputs="scores", labels="position", losses=losses, inputs=["source", "queries"])
    batches = [batch(classes) for classes in (3, 5, 3, 17, 5)] * 3

    def objective(net: Any, source: Any, queries: Any, position: Any) -> Any:
        return Softmax(axis=1)(net(source, queries), position)

    options: Any = {"hybrid": True, "options": {"learning_rate": 0.3}, "inputs": 2}
    assert_trains_as_by_hand(Pointer, spec, batches, objective, **options)
