"""Device metrics count exactly, reject unsupported shapes, and raise the errors of the metric."""

from typing import Any

import numpy as np
import pytest
from gluoncv.utils.metrics.segmentation import SegmentationMetric

from multifit.gluon.metrics import BinaryAccuracy, device_metric

from .device_totals import check_agreement, device_totals

import mxnet as mx  # isort: skip

M = mx.metric


@pytest.mark.parametrize("metric", [M.Accuracy(), M.Loss(), M.F1(average="micro"), SegmentationMetric(2)])
def test_sums_are_exact_beyond_the_range_of_float32(metric: Any) -> None:
    spatial = (2,) if isinstance(metric, SegmentationMetric) else ()
    labels, outputs = mx.nd.ones((3, *spatial)), mx.nd.zeros((3, 2, *spatial))
    outputs[:, 1] = 1
    outputs = mx.nd.ones((3,)) if isinstance(metric, M.Loss) else outputs
    device = device_metric(metric)
    device.load((2**24 + 1) * device_totals(device, [[([labels], [outputs])]], True))  # float32 ends at 2**24
    seen = metric.total_label if spatial else metric.num_inst
    assert seen == 3 * (2**24 + 1) * (2 if spatial else 1)
    assert metric.get()[0 if spatial else 1] == 1.0


def test_a_batch_of_more_than_2_to_the_24_elements_is_exact() -> None:
    size = 2**24 + 2
    labels = mx.nd.ones((2, size // 2), dtype="uint8")
    metric = M.Accuracy()
    device_metric(metric).load(device_totals(device_metric(metric), [[([labels], [labels])]], False))
    assert (metric.sum_metric, metric.num_inst) == (size, size)
    loss = mx.nd.ones((2, size // 2))
    totals = device_totals(device_metric(M.Loss()), [[([], [loss])]], False)
    np.testing.assert_array_equal(totals, [size, size])


@pytest.mark.parametrize(
    ("metric", "labels", "outputs"),
    [
        (M.Accuracy(), [(8,)], [(7, 3)]),  # not as many samples
        (M.Accuracy(), [(8,)], []),
        (M.Accuracy(), [(8,)], [(8, 3, 4)]),  # not as many classes as labels
        (M.Accuracy(axis=0), [(8,)], [(3, 8)]),
        (M.Accuracy(axis=2), [(8,)], [(8, 3)]),
        (M.Accuracy(), [(8,), (8,)], [(8, 3), (8, 3, 4)]),  # one pair of two
        (M.TopKAccuracy(4), [(8,)], [(8, 3)]),
        (M.TopKAccuracy(2), [(8, 2)], [(8, 3)]),
        (BinaryAccuracy(), [(8,)], [(8, 2)]),
        (M.MSE(), [(4,)], [(4, 3)]),  # numpy broadcasts
        (M.CrossEntropy(), [(8, 5)], [(8, 5, 4)]),
        (M.Perplexity(None, axis=0), [(8,)], [(8, 5)]),
        (M.F1(), [(8, 2)], [(8, 2)]),
        (M.Accuracy(), [(2, 3)], [(3, 5, 2)]),  # in another order
        (M.CompositeEvalMetric([M.MAE()]), [(8,), (8,)], [(8,), (8,)]),
        (M.MCC(), [(8,)], [(8,)]),
        (SegmentationMetric(2), [(8, 4, 4)], [(8, 3, 4, 4)]),  # more scores than classes
        (SegmentationMetric(2), [(8, 4, 4)], [(8, 2, 5, 5)]),
    ],
    # by name: an address would differ from one test process to the other
    ids=lambda value: str(value) if isinstance(value, list) else type(value).__name__,
)
def test_unsupported_shapes_cannot_be_bound(metric: Any, labels: list, outputs: list) -> None:
    assert not device_metric(metric).bind(labels, outputs)


def test_bind_replaces_earlier_shapes() -> None:
    device, labels = device_metric(M.Accuracy()), mx.nd.array([1, 2, 3])
    assert device.bind([(8,), (8,)], [(8, 3), (8, 3)]) and device.bind([(8,)], [(8,)])
    device.load(mx.nd.concat(*device.statistics(mx.nd, [labels], [labels]), dim=0).asnumpy())
    assert (device.metric.sum_metric, device.metric.num_inst) == (3, 3)


AVERAGED = [(M.F1, "macro"), (M.F1, "micro"), (M.MCC, "macro"), (M.MCC, "micro")]


@pytest.mark.parametrize(("metric", "average"), AVERAGED)
def test_labels_of_a_third_value_raise_the_metrics_own_error(metric: Any, average: str) -> None:
    labels, outputs = mx.nd.array([0, 1, 2]), mx.nd.array([[0, 1], [1, 0], [0, 1]])
    device = device_metric(metric(average=average))
    sums = device_totals(device, [[([labels], [outputs])]], False)
    errors = []
    for call in (lambda: metric(average=average).update([labels], [outputs]), lambda: device.load(sums)):
        with pytest.raises(ValueError, match="only supports binary") as raised:
            call()
        errors.append(str(raised.value))
    assert errors[0] == errors[1]


@pytest.mark.parametrize(("metric", "average"), AVERAGED)
def test_batches_of_one_class(metric: Any, average: str) -> None:
    for label, answer in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        outputs = mx.nd.one_hot(mx.nd.full((4,), answer), 2)
        check_agreement(metric(average=average), [[([mx.nd.full((4,), label)], [outputs])]], answer == 1)


@pytest.mark.parametrize("kind", [M.F1, M.MCC])
def test_labels_in_a_column(kind: Any) -> None:
    """MXNet itself compares each label with each output."""
    labels, outputs = mx.nd.array([0, 1, 1, 0]), mx.nd.array([[0, 1], [1, 0], [0, 1], [1, 0]])
    expected, metric = kind(), kind()
    expected.update([labels], [outputs])
    device = device_metric(metric)
    device.load(device_totals(device, [[([labels.reshape((-1, 1))], [outputs])]], True))
    assert metric.get() == expected.get()


@pytest.mark.parametrize("average", ["macro", "micro"])
def test_labels_may_be_any_two_values(average: str) -> None:
    labels = mx.nd.array([-1, 1, 1, -1, 1])
    check_agreement(M.F1(average=average), [[([labels], [mx.nd.random.normal(shape=(5, 2))])]], True)


@pytest.mark.parametrize(
    ("metric", "labels", "output"),
    [
        (M.CrossEntropy(), [[0, 5]], np.full((2, 5), 0.2)),  # there is no class 5
        (M.CrossEntropy(), [[0, -6]], np.full((2, 5), 0.2)),
        (M.Perplexity(1), [[1, 1]], np.full((2, 3), 0.3)),  # all labels are ignored
        (M.Loss(), [], [1, np.nan]),
    ],
)
def test_figures_that_are_nan(metric: Any, labels: list, output: Any) -> None:
    batch = ([mx.nd.array(label) for label in labels], [mx.nd.array(output)])
    device = device_metric(metric)
    device.load(device_totals(device, [[batch]], True))
    assert np.isnan(metric.get()[1])


@pytest.mark.parametrize("kind", [M.Accuracy, M.F1, lambda: M.F1(average="micro")])
def test_load_replaces_the_state(kind: Any) -> None:
    labels, metric = mx.nd.array([0, 1, 1]), kind()
    outputs = mx.nd.one_hot(labels, 2)
    metric.update([labels], [1 - outputs])
    device = device_metric(metric)
    device.load(device_totals(device, [[([labels], [outputs])]], False))
    assert metric.get()[1] == metric.get_global()[1] == 1.0
