"""Faster functions for losses of maps have the values and gradients of the losses; others get none."""

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, TaskSpec
from multifit.gluon.losses import SegmentationCELoss, faster_loss
from tests.common.hand_loop import assert_trains_as_by_hand

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, nd

Softmax = gluon.loss.SoftmaxCrossEntropyLoss
RNG = np.random.RandomState(5)


def maps(classes: int, dtype: str = "float32") -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
    """Return logits and labels, some of which `pick` clips and truncates."""
    logits, label = nd.array(8 * RNG.randn(3, classes, 5, 6)), RNG.randint(0, classes, (3, 5, 6))
    if dtype == "float32":
        label[0, 0, :4] = [-1, classes, 0.9, -0.5]
    return logits, nd.array(label, dtype=dtype)


def value_and_gradient(function: Any, logits: Any, *rest: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the values, and the gradient by logits, where the gradients by values are 1, 2, 3, ..."""
    logits = logits.copy()
    logits.attach_grad()
    with autograd.record():
        value = function(logits, *rest)
    value.backward(nd.arange(1, value.size + 1).reshape(value.shape))
    return value.asnumpy(), logits.grad.asnumpy()


def hybrid(function: Any) -> Any:
    class Graph(gluon.HybridBlock):
        def hybrid_forward(self, F: Any, *args: Any) -> Any:
            return function(*args)

    graph = Graph()
    graph.hybridize()
    return graph


WEIGHTS = nd.array([0.0, 2.0, 0.5])
CASES = {
    **{f"{n} classes": (Softmax(axis=1), maps(n)) for n in (1, 2, 5, 21)},
    "weight": (Softmax(axis=1, weight=0.3), maps(4, "int32")),
    "sample weights": (Softmax(axis=1), (*maps(5), WEIGHTS.reshape((3, 1, 1, 1)))),
    "sequences": (Softmax(axis=1), (nd.array(RNG.randn(4, 3, 7)), nd.array(RNG.randint(0, 3, (4, 7))))),
    "pixels": (SegmentationCELoss(weight=2.0), maps(4)),
    "nothing ignored": (SegmentationCELoss(ignore_label=None), maps(4, "uint8")),
    "2 ignored": (SegmentationCELoss(ignore_label=2), maps(4, "uint8")),
    "sample weights of pixels": (SegmentationCELoss(), (*maps(5, "int32"), WEIGHTS)),
}


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_the_loss(case: str, traced: bool) -> None:
    loss, args = CASES[case]
    function = faster_loss(loss, args)
    assert function is not None
    for one, other in zip(
        value_and_gradient(hybrid(function) if traced else function, *args), value_and_gradient(loss, *args)
    ):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


def test_logits_that_are_extreme_or_masked_by_minus_infinity() -> None:
    logits, label = nd.array([[[1e4, 0, -np.inf]], [[0, 3e4, 1]], [[-1e4, 1e-3, 0]]]), nd.array([[1, 1, 0]])
    logits = logits.transpose((1, 0, 2)).expand_dims(3)
    function = faster_loss(Softmax(axis=1), (logits, label.expand_dims(2)))
    values, gradient = value_and_gradient(function, logits[:, :, :2], label[:, :2].expand_dims(2))
    np.testing.assert_allclose(values, [1e4 / 2])
    np.testing.assert_allclose(gradient[0, :, :, 0] * 2, [[1, 0], [-1, 0], [0, 0]], atol=1e-5)
    _, gradient = value_and_gradient(function, logits[:, :, 2:], label[:, 1:2].expand_dims(2))
    assert np.isfinite(gradient).all() and gradient[0, 0, 0, 0] == 0


class Subclass(Softmax):
    """A subclass may compute anything."""


def hooked() -> Any:
    loss = Softmax(axis=1)
    loss.register_forward_hook(lambda *_: None)
    return loss


OTHERS: list[tuple[Any, Any, Any]] = [
    (Softmax(), (2, 3, 4), (2, 3)), (Softmax(), (2, 3), (2,)), (Softmax(axis=1), (2, 3, 4), (2, 1, 4)),
    (Softmax(axis=1, batch_axis=2), (2, 3, 4), (2, 4)),
    (Softmax(axis=1, from_logits=True), (2, 3, 4), (2, 4)),
    (Softmax(axis=1, sparse_label=False), (2, 3, 4), (2, 3, 4)), (Subclass(axis=1), (2, 3, 4), (2, 4)),
    (hooked(), (2, 3, 4), (2, 4)), (SegmentationCELoss(axis=-1), (2, 4, 4, 3), (2, 4, 4)),
    (gluon.loss.L2Loss(), (2, 3, 4), (2, 3, 4)), (lambda *args: args[0], (2, 3, 4), (2, 4)),
]  # fmt: skip


@pytest.mark.parametrize(("loss", "logits", "label"), OTHERS, ids=map(str, range(len(OTHERS))))
def test_no_other_loss_is_replaced(loss: Any, logits: tuple[int, ...], label: tuple[int, ...]) -> None:
    assert faster_loss(loss, (nd.ones(logits), nd.zeros(label))) is None


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
