"""Losses against NumPy, with padding, weights and gradients; and faster functions against the losses."""

from typing import Any

import numpy as np
import pytest

from multifit.gluon.losses import SegmentationCELoss, SequenceCELoss, faster_loss
from tests.common.nets import hybridized

import mxnet as mx  # isort: skip
from mxnet import gluon, nd

Softmax = gluon.loss.SoftmaxCrossEntropyLoss
RNG = np.random.RandomState(3)
LENGTHS = [5, 2, 0]


def log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    x = x - x.max(axis=axis, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=axis, keepdims=True))


def sequences() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    logits, labels = RNG.randn(3, 5, 7).astype("float32"), RNG.randint(0, 7, (3, 5))
    chosen = -np.take_along_axis(log_softmax(logits, 2), labels[..., None], 2)[..., 0]
    return logits, labels, (chosen * (np.arange(5) < np.array(LENGTHS)[:, None])).sum(1)


def pixels() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    logits, labels = RNG.randn(3, 4, 5, 6).astype("float32"), RNG.randint(0, 4, (3, 5, 6))
    return logits, labels, -np.take_along_axis(log_softmax(logits, 1), labels[:, None], 1)[:, 0]


def value_and_gradient(loss: Any, logits: Any, *slots: Any, heads: Any = 1.0) -> tuple[Any, Any]:
    """Return the values, and the gradient by logits, where `heads` are the gradients by values."""
    x = nd.array(logits)
    x.attach_grad()
    with mx.autograd.record():
        values = loss(x, *[slot if isinstance(slot, nd.NDArray) else nd.array(slot) for slot in slots])
    values.backward(nd.ones_like(values) * heads)
    return values.asnumpy(), x.grad.asnumpy()


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize(("axis", "sparse"), [(-1, True), (2, False), (1, False), (1, True)])
def test_sequences_are_summed_over_their_valid_tokens(hybrid: bool, axis: int, sparse: bool) -> None:
    """What is behind affects neither loss nor gradient."""
    logits, labels, expected = sequences()
    target = labels.astype("float32") if sparse else np.eye(7, dtype="float32")[labels]
    for row, length in enumerate(LENGTHS):
        logits[row, length:] = np.nan
        target[row, length:] = np.nan
    turned = [each.swapaxes(1, 2) if axis == 1 and each.ndim == 3 else each for each in (logits, target)]
    loss = hybridized(SequenceCELoss(axis, sparse), hybrid, static_alloc=True)
    values, gradient = value_and_gradient(loss, *turned, LENGTHS)
    gradient = gradient.swapaxes(1, 2) if axis == 1 else gradient
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
    for row, length in enumerate(LENGTHS):
        softmax = np.exp(log_softmax(logits[row, :length], 1)) if length else np.zeros((0, 7))
        expected_gradient = softmax - np.eye(7)[labels[row, :length]]
        np.testing.assert_allclose(gradient[row, :length], expected_gradient, rtol=1e-4, atol=1e-6)
        assert (gradient[row, length:] == 0).all()


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize(
    ("ignore", "dtype"), [(-1, "int32"), (255, "uint8"), (2, "float32"), (None, "uint8")]
)
def test_pixels_are_averaged_over_the_valid_ones(hybrid: bool, ignore: Any, dtype: str) -> None:
    logits, labels, losses = pixels()
    if ignore is not None:
        labels[0, :2] = labels[1] = ignore
    valid = labels != ignore
    expected = (losses * valid).sum((1, 2)) / np.maximum(valid.sum((1, 2)), 1)
    loss = hybridized(SegmentationCELoss(ignore), hybrid, static_alloc=True)
    values, gradient = value_and_gradient(loss, logits, nd.array(labels, dtype=dtype))
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    assert (gradient.transpose(0, 2, 3, 1)[~valid] == 0).all()
    softmax = np.exp(log_softmax(logits[2], 0)) - np.eye(4)[labels[2] % 4].transpose(2, 0, 1)
    counted = softmax * valid[2] / valid[2].sum()
    np.testing.assert_allclose(gradient[2], counted, rtol=1e-4, atol=1e-7)


def test_pixels_of_float64_on_another_axis_with_an_axis_of_channels() -> None:
    logits, labels, losses = pixels()
    labels[0] = -1
    for axis, rows, label in [
        (-1, logits.transpose(0, 2, 3, 1), labels[..., None]),
        (1, logits, labels[:, None]),
    ]:
        values = SegmentationCELoss(axis=axis)(nd.array(rows, dtype="float64"), nd.array(label))
        assert values.dtype == np.float64
        np.testing.assert_allclose(values.asnumpy(), [0, *losses[1:].mean((1, 2))], rtol=1e-5)


@pytest.mark.parametrize("kind", [SequenceCELoss, SegmentationCELoss])
def test_weights_and_incoming_gradients_take_effect(kind: Any) -> None:
    logits, labels, _ = sequences() if kind is SequenceCELoss else pixels()
    slots = [logits, labels, LENGTHS] if kind is SequenceCELoss else [logits, labels]

    def gradient(loss: Any, *weights: Any, heads: float = 1.0) -> np.ndarray:
        return value_and_gradient(loss, *slots, *weights, heads=heads)[1]

    plain = gradient(kind())
    assert np.abs(plain).max() > 0
    np.testing.assert_allclose(gradient(kind(), heads=4.0), 4 * plain, rtol=1e-6)
    np.testing.assert_allclose(gradient(kind(weight=4.0)), 4 * plain, rtol=1e-6)
    assert (gradient(kind(weight=0.0)) == 0).all()
    np.testing.assert_allclose(gradient(kind(), [0, 2, 3]).T, plain.T * np.array([0, 2, 3]), rtol=1e-6)


def maps(classes: int, dtype: str = "float32") -> tuple[nd.NDArray, nd.NDArray]:
    """Return logits and labels, some of which `pick` clips and truncates."""
    logits, label = nd.array(8 * RNG.randn(3, classes, 5, 6)), RNG.randint(0, classes, (3, 5, 6))
    label = label.astype(dtype)
    if dtype == "float32":
        label[0, 0, :4] = [-1, classes, 0.9, -0.5]
    return logits, nd.array(label, dtype=dtype)


WEIGHTS = nd.array([0.0, 2.0, 0.5])
FASTER = {
    **{f"{n} classes": (Softmax(axis=1), maps(n)) for n in (1, 2, 5, 21)},
    "weight": (Softmax(axis=1, weight=0.3), maps(4, "int32")),
    "sample weights": (Softmax(axis=1), (*maps(5), WEIGHTS.reshape((3, 1, 1, 1)))),
    "sequences": (Softmax(axis=1), (nd.array(RNG.randn(4, 3, 7)), nd.array(RNG.randint(0, 3, (4, 7))))),
    "pixels": (SegmentationCELoss(weight=2.0), maps(4)),
    "nothing ignored": (SegmentationCELoss(ignore_label=None), maps(4, "uint8")),
    "2 ignored": (SegmentationCELoss(ignore_label=2), maps(4, "uint8")),
    "sample weights of pixels": (SegmentationCELoss(), (*maps(5, "int32"), WEIGHTS)),
}


class Graph(gluon.HybridBlock):
    """A function as a graph."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def hybrid_forward(self, F: Any, *args: Any) -> Any:
        return self.function(*args)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("case", FASTER)
def test_a_faster_function_has_the_values_and_gradients_of_the_loss(case: str, traced: bool) -> None:
    loss, args = FASTER[case]
    function = faster_loss(loss, args)
    heads = nd.arange(1, len(args[0]) + 1)
    results = [
        value_and_gradient(each, *args, heads=heads)
        for each in (hybridized(Graph(function)) if traced else function, loss)
    ]
    for one, other in zip(*results):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


def test_logits_that_are_extreme_or_masked_by_minus_infinity() -> None:
    logits, label = np.array([[[1e4, 0], [0, 3e4], [-1e4, 1e-3]]]), np.array([[1, 1]])
    function = faster_loss(Softmax(axis=1), (logits, label))
    values, gradient = value_and_gradient(function, logits, label, heads=2)
    np.testing.assert_allclose(values, [1e4 / 2])
    np.testing.assert_allclose(gradient[0], [[1, 0], [-1, 0], [0, 0]], atol=1e-5)
    values, gradient = value_and_gradient(function, [[[-np.inf], [1], [1]]], [[1]])
    np.testing.assert_allclose(values, np.log(2), rtol=1e-5)
    np.testing.assert_allclose(gradient[0, :, 0], [0, -0.5, 0.5], rtol=1e-5)


class Subclass(Softmax):
    """A subclass may compute anything."""


def hooked() -> Any:
    loss = Softmax(axis=1)
    loss.register_forward_hook(lambda *_: None)
    return loss


OTHERS: list[tuple[Any, Any, Any]] = [
    (Softmax(), (2, 3, 4), (2, 3)), (Softmax(), (2, 3), (2,)), (Softmax(axis=1), (2, 3, 4), (2, 1, 4)),
    (Softmax(axis=1, batch_axis=2), (2, 3, 4), (2, 4)), (hooked(), (2, 3, 4), (2, 4)),
    (Softmax(axis=1, from_logits=True), (2, 3, 4), (2, 4)), (Subclass(axis=1), (2, 3, 4), (2, 4)),
    (Softmax(axis=1, sparse_label=False), (2, 3, 4), (2, 3, 4)),
    (SegmentationCELoss(axis=-1), (2, 4, 4, 3), (2, 4, 4)), (gluon.loss.L2Loss(), (2, 3, 4), (2, 3, 4)),
    (lambda *args: args[0], (2, 3, 4), (2, 4)),
]  # fmt: skip


@pytest.mark.parametrize(("loss", "logits", "label"), OTHERS, ids=map(str, range(len(OTHERS))))
def test_no_other_loss_has_a_faster_function(loss: Any, logits: Any, label: Any) -> None:
    assert faster_loss(loss, (nd.ones(logits), nd.zeros(label))) is None
