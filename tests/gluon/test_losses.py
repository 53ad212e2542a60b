"""Losses against NumPy, with padding, weights and gradients."""

from typing import Any

import numpy as np
import pytest

from multifit.gluon.losses import SegmentationCELoss, SequenceCELoss
from tests.common.nets import hybridized

import mxnet as mx  # isort: skip

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


def value_and_gradient(
    loss: Any, logits: Any, *slots: Any, head: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    x = mx.nd.array(logits)
    x.attach_grad()
    with mx.autograd.record():
        values = loss(x, *map(mx.nd.array, slots))
    values.backward(mx.nd.full(values.shape, head))
    return values.asnumpy(), x.grad.asnumpy()


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize(
    ("axis", "sparse", "dtype"), [(-1, True, "int32"), (2, True, "float32"), (1, False, "int32")]
)
def test_sequences_are_summed_over_their_valid_tokens(
    hybrid: bool, axis: int, sparse: bool, dtype: str
) -> None:
    logits, labels, expected = sequences()
    target = np.eye(7, dtype="float32")[labels] if not sparse else labels
    if axis == 1:
        logits, target = logits.swapaxes(1, 2), target if sparse else target.swapaxes(1, 2)
    label = mx.nd.array(target, dtype=dtype if sparse else "float32")
    lengths = mx.nd.array(LENGTHS, dtype=dtype)
    values = hybridized(SequenceCELoss(axis, sparse), hybrid, static_alloc=True)(
        mx.nd.array(logits), label, lengths
    )
    np.testing.assert_allclose(values.asnumpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("hybrid", "sparse"), [(False, True), (True, True), (True, False)])
def test_padding_affects_neither_loss_nor_gradient(hybrid: bool, sparse: bool) -> None:
    logits, labels, expected = sequences()
    target = labels.astype("float32") if sparse else np.eye(7, dtype="float32")[labels]
    for row, length in enumerate(LENGTHS):
        logits[row, length:] = np.nan
        target[row, length:] = np.nan
    loss = hybridized(SequenceCELoss(sparse_label=sparse), hybrid, static_alloc=True)
    values, gradient = value_and_gradient(loss, logits, target, LENGTHS)
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
        labels[0, :2] = ignore
        labels[1] = ignore
    valid = labels != ignore
    expected = (losses * valid).sum((1, 2)) / np.maximum(valid.sum((1, 2)), 1)
    loss = hybridized(SegmentationCELoss(ignore), hybrid, static_alloc=True)
    values = loss(mx.nd.array(logits), mx.nd.array(labels, dtype=dtype))
    np.testing.assert_allclose(values.asnumpy(), expected, rtol=1e-5)


def test_pixels_of_float64_on_another_axis_with_an_axis_of_channels() -> None:
    logits, labels, losses = pixels()
    labels[0] = -1
    rows = mx.nd.array(logits.transpose(0, 2, 3, 1), dtype="float64")
    values = SegmentationCELoss(axis=-1)(rows, mx.nd.array(labels[..., None]))
    assert values.dtype == np.float64
    np.testing.assert_allclose(values.asnumpy(), [0, *losses[1:].mean((1, 2))], rtol=1e-5)
    values = SegmentationCELoss()(mx.nd.array(logits), mx.nd.array(labels[:, None]))
    np.testing.assert_allclose(values.asnumpy(), [0, *losses[1:].mean((1, 2))], rtol=1e-5)


def test_ignored_pixels_have_no_gradient() -> None:
    logits, labels, _ = pixels()
    labels[0, :2] = -1
    labels[1] = -1
    gradient = value_and_gradient(SegmentationCELoss(), logits, labels)[1]
    assert (gradient[0, :, :2] == 0).all()
    assert (gradient[1] == 0).all()
    expected_gradient = (np.exp(log_softmax(logits, 1)) - np.eye(4)[labels].transpose(0, 3, 1, 2))[2] / 30
    np.testing.assert_allclose(gradient[2], expected_gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("kind", [SequenceCELoss, SegmentationCELoss])
def test_weights_and_incoming_gradients_take_effect(kind: Any) -> None:
    logits, labels, _ = sequences() if kind is SequenceCELoss else pixels()
    slots = [logits, labels, LENGTHS] if kind is SequenceCELoss else [logits, labels]

    def gradient(loss: Any, *weights: Any, head: float = 1.0) -> np.ndarray:
        return value_and_gradient(loss, *slots, *weights, head=head)[1]

    plain = gradient(kind())
    assert np.abs(plain).max() > 0
    np.testing.assert_allclose(gradient(kind(), head=4.0), 4 * plain, rtol=1e-6)
    np.testing.assert_allclose(gradient(kind(weight=4.0)), 4 * plain, rtol=1e-6)
    assert (gradient(kind(weight=0.0)) == 0).all()
    np.testing.assert_allclose(gradient(kind(), [0, 2, 3]).T, plain.T * np.array([0, 2, 3]), rtol=1e-6)
