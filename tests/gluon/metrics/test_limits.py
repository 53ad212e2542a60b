"""Where the device-side path must be exact, must refuse, or must complain as the metric does."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest
from gluoncv.utils.metrics.segmentation import SegmentationMetric

from multifit.gluon.metrics import BinaryAccuracy, device_metric

import mxnet as mx  # isort: skip

M = mx.metric


@pytest.mark.parametrize("metric", [M.Accuracy(), M.Loss(), M.F1(average="micro"), SegmentationMetric(2)])
def test_sums_grow_beyond_what_float32_counts(metric: Any, totals: Callable[..., np.ndarray]) -> None:
    spatial = (2,) if isinstance(metric, SegmentationMetric) else ()
    labels, outputs = mx.nd.ones((3, *spatial)), mx.nd.zeros((3, 2, *spatial))
    outputs[:, 1] = 1
    if isinstance(metric, M.Loss):
        outputs = mx.nd.ones((3,))
    device = device_metric(metric)
    one = mx.nd.array(totals(device, [[([labels], [outputs])]], True), dtype="float64")
    many = mx.nd.array(one * (2**24), dtype="float64") + one  # a float32 at 2**24 would not move
    device.load(many.asnumpy())
    seen = metric.total_label if spatial else metric.num_inst
    assert seen == 3 * (2**24 + 1) * (2 if spatial else 1)
    assert metric.get()[0 if spatial else 1] == 1.0


def test_one_batch_of_more_than_2_to_the_24_answers_is_exact(totals: Callable[..., np.ndarray]) -> None:
    size = 2**24 + 2
    labels = mx.nd.ones((2, size // 2), dtype="uint8")
    metric = M.Accuracy()
    said = totals(device_metric(metric), [[([labels], [labels])]], False)
    np.testing.assert_array_equal(said, [size, size])
    loss = mx.nd.ones((2, size // 2))
    np.testing.assert_array_equal(totals(device_metric(M.Loss()), [[([], [loss])]], False), [size, size])


@pytest.mark.parametrize(
    ("metric", "labels", "outputs"),
    [
        (M.Accuracy(), [(8,)], [(7, 3)]),  # not as many samples
        (M.Accuracy(), [(8,)], []),
        (M.Accuracy(), [], []),
        (M.Accuracy(), [(8,)], [(8, 3, 4)]),  # not as many classes as labels
        (M.Accuracy(axis=0), [(8,)], [(3, 8)]),
        (M.Accuracy(axis=2), [(8,)], [(8, 3)]),
        (M.Accuracy(axis=-3), [(8,)], [(8, 3)]),
        (M.Accuracy(), [(8,), (8,)], [(8, 3), (8, 3, 4)]),  # one pair of two
        (M.TopKAccuracy(4), [(8,)], [(8, 3)]),
        (M.TopKAccuracy(2), [(8,)], [(8,)]),
        (M.TopKAccuracy(2), [(8, 2)], [(8, 3)]),
        (BinaryAccuracy(), [(8,)], [(8, 2)]),
        (M.MSE(), [(4,)], [(4, 3)]),  # numpy broadcasts
        (M.MAE(), [(1, 4)], [(4, 1)]),
        (M.CrossEntropy(), [(8, 5)], [(8, 5, 4)]),
        (M.Perplexity(None), [(8, 5)], [(8, 5, 4)]),
        (M.F1(), [(8, 1)], [(8, 2)]),
        (M.MCC(), [(8,)], [(8,)]),
        (SegmentationMetric(2), [(8, 4, 4)], [(8, 3, 4, 4)]),  # more scores than classes
        (SegmentationMetric(2), [(8, 4, 4)], [(8, 2, 5, 5)]),
        (SegmentationMetric(2), [(8,)], [(8,)]),
    ],
    # by name: an address would differ from one test process to the other
    ids=lambda value: str(value) if isinstance(value, list) else type(value).__name__,
)
def test_other_shapes_are_left_to_the_metric(metric: Any, labels: list, outputs: list) -> None:
    assert not device_metric(metric).bind(labels, outputs)


def test_binding_again_forgets_the_shapes_before() -> None:
    device = device_metric(M.Accuracy())
    assert device.bind([(8,), (8,)], [(8, 3), (8, 3)])
    assert device.bind([(8,)], [(8,)])
    labels = mx.nd.array([1, 2, 3])
    found = device.statistics(mx.nd, [labels], [labels])
    assert [value.asscalar() for value in found] == [3, 3]


@pytest.mark.parametrize("average", ["macro", "micro"])
@pytest.mark.parametrize("metric", [M.F1, M.MCC])
def test_labels_of_a_third_value_are_refused_in_the_metrics_words(
    metric: Any, average: str, totals: Callable[..., np.ndarray]
) -> None:
    labels, outputs = mx.nd.array([0, 1, 2]), mx.nd.array([[0, 1], [1, 0], [0, 1]])
    with pytest.raises(ValueError, match="only supports binary") as expected:
        metric(average=average).update([labels], [outputs])
    device = device_metric(metric(average=average))
    sums = totals(device, [[([labels], [outputs])]], False)
    with pytest.raises(ValueError, match="only supports binary") as said:
        device.load(sums)
    assert str(said.value) == str(expected.value)


@pytest.mark.parametrize("average", ["macro", "micro"])
@pytest.mark.parametrize("metric", [M.F1, M.MCC])
@pytest.mark.parametrize("answers", [(0, 0), (0, 1), (1, 0), (1, 1)], ids=str)
def test_one_sided_batches_divide_by_nothing(
    metric: Any, average: str, answers: tuple, agree: Callable[..., None]
) -> None:
    labels = mx.nd.full((4,), answers[0])
    outputs = mx.nd.one_hot(mx.nd.full((4,), answers[1]), 2)
    agree(metric(average=average), [[([labels], [outputs])]])


@pytest.mark.parametrize("average", ["macro", "micro"])
def test_labels_may_be_any_two_values_as_in_the_metric(average: str, agree: Callable[..., None]) -> None:
    labels = mx.nd.array([-1, 1, 1, -1, 1])
    agree(M.F1(average=average), [[([labels], [mx.nd.random.normal(shape=(5, 2))])]])


@pytest.mark.parametrize("label", [5, -6])
def test_a_label_outside_of_the_classes_makes_the_cross_entropy_nan(
    label: int, totals: Callable[..., np.ndarray]
) -> None:
    metric = M.CrossEntropy()
    device = device_metric(metric)
    labels, outputs = mx.nd.array([0, label]), mx.nd.softmax(mx.nd.ones((2, 5)))
    device.load(totals(device, [[([labels], [outputs])]], True))
    assert np.isnan(metric.get()[1])


def test_a_loss_that_is_nan_says_so(totals: Callable[..., np.ndarray]) -> None:
    metric = M.Loss()
    device = device_metric(metric)
    device.load(totals(device, [[([], [mx.nd.array([1, np.nan])])]], True))
    assert np.isnan(metric.get()[1])
    assert metric.num_inst == 2


def test_perplexity_of_nothing_but_ignored_labels_is_nan(totals: Callable[..., np.ndarray]) -> None:
    metric = M.Perplexity(1)
    device = device_metric(metric)
    labels = mx.nd.ones((4,))
    device.load(totals(device, [[([labels], [mx.nd.softmax(mx.nd.ones((4, 3)))])]], True))
    assert np.isnan(metric.get()[1])


def test_loading_replaces_what_was_there(totals: Callable[..., np.ndarray]) -> None:
    labels = mx.nd.array([0, 1, 1])
    for metric in [M.Accuracy(), M.F1(), M.F1(average="micro")]:
        outputs = mx.nd.one_hot(labels, 2)
        metric.update([labels], [1 - outputs])
        device = device_metric(metric)
        device.load(totals(device, [[([labels], [outputs])]], False))
        assert metric.get()[1] == metric.get_global()[1] == 1.0
        metric.reset_local()
        metric.update([labels], [outputs])
        assert metric.get()[1] == 1.0
