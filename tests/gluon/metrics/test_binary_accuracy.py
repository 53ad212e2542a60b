"""BinaryAccuracy."""

import pytest

from multifit.gluon.metrics import BinaryAccuracy

import mxnet as mx  # isort: skip


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_logits_above_0_predict_1(shape: tuple) -> None:
    metric = BinaryAccuracy()
    logits = mx.nd.array([-2, 0.3, 0.0, 5]).reshape(shape)
    metric.update(mx.nd.array([0, 1, 1, 0]), logits)
    assert metric.get() == ("binary_accuracy", 0.5)
    metric.update([mx.nd.array([1])], [mx.nd.array([[9]])])
    assert metric.get()[1] == metric.get_global()[1] == 3 / 5
    metric.reset_local()
    assert metric.get_global()[1] == 3 / 5


def test_a_threshold_for_probabilities() -> None:
    metric = BinaryAccuracy(threshold=0.5, name="odd")
    metric.update([mx.nd.array([0, 1])], [mx.nd.array([0.4, 0.6])])
    assert metric.get() == ("odd", 1.0)
    assert metric.get_config()["threshold"] == 0.5


@pytest.mark.parametrize("outputs", [[mx.nd.ones((3, 2))], []])
def test_different_sizes_are_an_error(outputs: list) -> None:
    with pytest.raises(ValueError, match="does not match"):
        BinaryAccuracy().update([mx.nd.ones((3,))], outputs)
