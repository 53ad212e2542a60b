"""Every device metric computes what the metric itself computes from all samples at once."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gluoncv.utils.metrics.segmentation import SegmentationMetric

from multifit.gluon.metrics import BinaryAccuracy, DeviceMetric, device_metric

import mxnet as mx  # isort: skip

RNG = np.random.RandomState(7)
M, nd = mx.metric, mx.nd
Batch = list  # per device: (labels, outputs), each a list of NDArrays


class StatisticsGraph(mx.gluon.HybridBlock):
    """A device metric as one graph, called with the labels and then the outputs."""

    def __init__(self, device: Any, labels: int) -> None:
        super().__init__()
        self.device, self.labels = device, labels

    def hybrid_forward(self, F: Any, *slots: Any) -> Any:
        pieces = self.device.statistics(F, list(slots[: self.labels]), list(slots[self.labels :]))
        return F.concat(*pieces, dim=0) if len(pieces) > 1 else pieces[0]


def loaded(metric: Any, *batches: Batch) -> Any:
    """Return the metric after a pass that is computed on the devices."""
    device, (labels, outputs) = device_metric(metric), batches[0][0]
    assert device.bind(*[[array.shape for array in arrays] for arrays in (labels, outputs)])
    graph = StatisticsGraph(device, len(labels))
    graph.hybridize(static_alloc=True)
    pieces = [graph(*labels, *outputs) for batch in batches for labels, outputs in batch]
    assert {(piece.shape, piece.dtype) for piece in pieces} == {((device.width,), np.float32)}
    device.load(np.sum([piece.asnumpy() for piece in pieces], axis=0, dtype="float64"))
    return metric


def classes(shape: tuple, count: int, dtype: str = "float32", least: int = 0) -> Callable[[int], Any]:
    return lambda n: nd.array(RNG.randint(least, count, (n, *shape)), dtype=dtype)


def scores(*shape: int) -> Callable[[int], Any]:
    return lambda n: nd.array(RNG.randn(n, *shape))


def amounts(*shape: int) -> Callable[[int], Any]:
    return lambda n: nd.array(RNG.rand(n, *shape))


def chances(*shape: int) -> Callable[[int], Any]:
    return lambda n: nd.softmax(nd.array(RNG.randn(n, *shape)))


def fractions(n: int) -> Any:
    """Return labels that are truncated; some are ignored or unknown."""
    return nd.array(RNG.randint(-2, 23, (n, 6, 5)) + RNG.uniform(-0.9, 0.9, (n, 6, 5)))


CASES = {
    "accuracy": (lambda: M.Accuracy(), classes((), 5), scores(5)),
    "accuracy of int labels in a column": (lambda: M.Accuracy(), classes((1,), 5, "int32"), scores(5)),
    "accuracy of classes": (lambda: M.Accuracy(), classes((3,), 2), classes((3,), 2, "int64")),
    "accuracy of one logit": (lambda: M.Accuracy(), classes((), 2), scores(1)),
    "accuracy of pixels": (lambda: M.Accuracy(), classes((4, 6), 3, "uint8"), scores(3, 4, 6)),
    "accuracy of tokens": (lambda: M.Accuracy(axis=-1, name="tokens"), classes((7,), 4), scores(7, 4)),
    "top 2": (lambda: M.TopKAccuracy(2), classes((), 5), scores(5)),
    "top 3 of 3 in a column": (lambda: M.TopKAccuracy(3), classes((1,), 3, "int32"), scores(3)),
    "binary": (lambda: BinaryAccuracy(-0.5), classes((1,), 2, "int32"), classes((), 2, "int32")),
    # a mean of values of both signs may come close to 0, where no relative error means anything
    "loss": (lambda: M.Loss(), scores(), amounts()),
    "loss of tokens": (lambda: M.Loss("tokens"), scores(), amounts(7)),
    "MAE": (lambda: M.MAE(), scores(), scores(1)),
    "MSE of int labels": (lambda: M.MSE(), classes((), 9, "int32"), scores()),
    "MSE of maps": (lambda: M.MSE(), scores(3, 4, 5), scores(3, 4, 5)),
    "RMSE": (lambda: M.RMSE(), scores(1), scores()),
    "cross entropy": (lambda: M.CrossEntropy(), classes((), 5), chances(5)),
    "cross entropy from the end": (lambda: M.CrossEntropy(), classes((1,), 0, least=-5), chances(5)),
    "negative log likelihood": (lambda: M.NegativeLogLikelihood(1e-3), classes((), 5, "int32"), chances(5)),
    "perplexity": (lambda: M.Perplexity(None), classes((), 5), chances(5)),
    "perplexity that ignores": (lambda: M.Perplexity(0), classes((1,), 3, "int32"), chances(3)),
    "F1 macro": (lambda: M.F1(), classes((), 2), scores(2)),
    "F1 micro": (lambda: M.F1(average="micro"), classes((), 2, "int32"), scores(2)),
    "F1 of -1 and 1": (lambda: M.F1(), lambda n: 2 * classes((), 2)(n) - 1, scores(2)),
    "MCC micro": (lambda: M.MCC(average="micro"), classes((), 2), scores(3)),
    "segmentation": (lambda: SegmentationMetric(4), classes((6, 5), 4, "int32"), scores(4, 6, 5)),
    "segmentation, ignored and unknown": (lambda: SegmentationMetric(21), fractions, scores(21, 6, 5)),
    "segmentation, equal scores": (lambda: SegmentationMetric(3), classes((6, 5), 3), classes((3, 6, 5), 2)),
    "segmentation with fewer scores": (lambda: SegmentationMetric(4), classes((6, 5), 4), scores(2, 6, 5)),
    "segmentation with one score": (lambda: SegmentationMetric(2), classes((6, 5), 2), scores(1, 6, 5)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("pairs", [1, 2])
def test_equals_the_metric(case: str, pairs: int) -> None:
    """Updated once with all samples of three batches on two devices."""
    make, label, output = CASES[case]
    devices = [
        ([label(n) for _ in range(pairs)], [output(n) for _ in range(pairs)]) for n in (8, 5, 8, 5, 3, 2)
    ]
    result, metric = loaded(make(), devices[:2], devices[2:4], devices[4:]), make()
    metric.update(*([nd.concat(*pieces, dim=0) for pieces in zip(*each)] for each in zip(*devices)))
    for ours, theirs in zip((result.get(), result.get_global()), (metric.get(), metric.get_global())):
        values = [value for value in theirs if not isinstance(value, str)]  # behind a name, if there is one
        assert ours[: -len(values)] == theirs[: -len(values)]
        np.testing.assert_allclose(ours[-len(values) :], values, rtol=1e-6)
    assert not np.isnan(metric.get()[-1])


MASKED = {
    "accuracy": True, "accuracy of int labels in a column": True, "accuracy of pixels": True,
    "accuracy of tokens": True, "binary": True, "accuracy of classes": False, "MSE of maps": False,
}  # fmt: skip


@pytest.mark.parametrize("case", MASKED)
def test_values_that_are_missing_are_left_out(case: str) -> None:
    metric, label, output = CASES[case]
    labels, outputs = label(9), output(9)
    mask = nd.array(RNG.rand(*labels.shape) < 0.6)
    device, expected = device_metric(metric()), metric()
    assert device.bind([labels.shape], [outputs.shape], mask.shape) is MASKED[case]
    assert not device.bind([labels.shape], [outputs.shape], (8,))
    if device.bind([labels.shape], [outputs.shape], mask.shape):
        sums = device.statistics(nd, [labels], [outputs], mask)
        device.load(np.array([each.asscalar() for each in sums]))
        values, axis = outputs.asnumpy(), getattr(expected, "axis", None)
        if axis is not None:
            values = np.moveaxis(values, axis, -1).reshape(labels.size, -1)
        chosen = mask.asnumpy().ravel() == 1
        expected.update([nd.array(labels.asnumpy().ravel()[chosen])], [nd.array(values[chosen])])
        assert device.metric.get() == pytest.approx(expected.get())


@pytest.mark.parametrize("case", CASES)
def test_no_gradient_flows_through_statistics_and_nothing_is_a_new_metric(case: str) -> None:
    metric, label, output = CASES[case]
    device, labels, outputs = device_metric(metric()), label(6), output(6).astype("float32")
    expected = device.metric.get()
    device.load(np.zeros(device.width))
    np.testing.assert_array_equal(device.metric.get()[-1], expected[-1])
    assert device.bind([labels.shape], [outputs.shape])
    outputs.attach_grad()
    with mx.autograd.record():
        objective = (outputs * 2).sum()
        statistics = nd.concat(*device.statistics(nd, [labels], [outputs]), dim=0)
    mx.autograd.backward([objective, statistics])
    np.testing.assert_array_equal(outputs.grad.asnumpy(), np.full(outputs.shape, 2.0, "float32"))


UNSUPPORTED: list[tuple[Any, list[Any], list[Any]]] = [
    (M.Accuracy(), [(8,)], [(7, 3)]), (M.Accuracy(), [(8,)], []),  # not as many samples
    (M.Accuracy(), [(8,)], [(8, 3, 4)]),  # not as many classes as labels
    (M.Accuracy(axis=0), [(8,)], [(3, 8)]), (M.Accuracy(axis=2), [(8,)], [(8, 3)]),
    (M.Accuracy(), [(8,), (8,)], [(8, 3), (8, 3, 4)]),  # one pair of two
    (M.TopKAccuracy(4), [(8,)], [(8, 3)]), (M.TopKAccuracy(2), [(8, 2)], [(8, 3)]),
    (BinaryAccuracy(), [(8,)], [(8, 2)]), (M.MSE(), [(4,)], [(4, 3)]),  # NumPy broadcasts
    (M.CrossEntropy(), [(8, 5)], [(8, 5, 4)]), (M.Perplexity(None, axis=0), [(8,)], [(8, 5)]),
    (M.F1(), [(8, 2)], [(8, 2)]), (M.Accuracy(), [(2, 3)], [(3, 5, 2)]),  # in another order
    (M.CompositeEvalMetric([M.MAE()]), [(8,), (8,)], [(8,), (8,)]), (M.MCC(), [(8,)], [(8,)]),
    (SegmentationMetric(2), [(8, 4, 4)], [(8, 3, 4, 4)]),  # more scores than classes
    (SegmentationMetric(2), [(8, 4, 4)], [(8, 2, 5, 5)]),
]  # fmt: skip


def test_unsupported_shapes_cannot_be_bound() -> None:
    for metric, labels, outputs in UNSUPPORTED:
        assert not device_metric(metric).bind(labels, outputs), (type(metric), labels, outputs)


def test_bind_and_load_replace_what_was_there() -> None:
    device, labels = device_metric(M.Accuracy()), nd.array([1, 2, 3])
    assert device.bind([(8,), (8,)], [(8, 3), (8, 3)]) and device.bind([(8,)], [(8,)])
    device.load(nd.concat(*device.statistics(nd, [labels], [labels]), dim=0).asnumpy())
    assert (device.metric.sum_metric, device.metric.num_inst) == (3, 3)
    for metric in (M.Accuracy(), M.F1(), M.F1(average="micro")):
        labels = nd.array([0, 1, 1])
        metric.update([labels], [1 - nd.one_hot(labels, 2)])
        loaded(metric, [([labels], [nd.one_hot(labels, 2)])])
        assert metric.get()[1] == metric.get_global()[1] == 1.0
    with pytest.raises(NotImplementedError):
        DeviceMetric(M.Accuracy()).bind([(3,)], [(3,)])


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
    batch = [nd.array(label) for label in labels], [nd.array(output)]
    assert np.isnan(loaded(metric, [batch]).get()[1])


def test_binary_accuracy_on_the_host() -> None:
    for shape in [(4,), (4, 1)]:  # logits above 0 predict 1
        metric = BinaryAccuracy()
        metric.update(nd.array([0, 1, 1, 0]), nd.array([-2, 0.3, 0.0, 5]).reshape(shape))
        assert metric.get() == ("binary_accuracy", 0.5)
        metric.update([nd.array([1])], [nd.array([[9]])])
        assert metric.get()[1] == metric.get_global()[1] == 3 / 5
        metric.reset_local()
        assert metric.get_global()[1] == 3 / 5
    metric = BinaryAccuracy(threshold=0.5, name="odd")  # for probabilities
    metric.update([nd.array([0, 1])], [nd.array([0.4, 0.6])])
    assert metric.get() == ("odd", 1.0) and metric.get_config()["threshold"] == 0.5
    for outputs in ([nd.ones((3, 2))], []):
        with pytest.raises(ValueError, match="does not match"):
            metric.update([nd.ones((3,))], outputs)
