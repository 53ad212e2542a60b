"""Every device metric equals the metric itself, updated once: eager and traced, several pairs and batches."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gluoncv.utils.metrics.segmentation import SegmentationMetric

from multifit.gluon.metrics import BinaryAccuracy, device_metric

from .device_totals import check_agreement

import mxnet as mx  # isort: skip

RNG = np.random.RandomState(7)
M = mx.metric
INT = "int32"


def classes(shape: tuple, count: int, dtype: str = "float32") -> Callable[[int], Any]:
    return lambda n: mx.nd.array(RNG.randint(0, count, (n, *shape)), dtype=dtype)


def scores(*shape: int) -> Callable[[int], Any]:
    return lambda n: mx.nd.array(RNG.randn(n, *shape))


def amounts(*shape: int) -> Callable[[int], Any]:
    return lambda n: mx.nd.array(RNG.rand(n, *shape))


def chances(*shape: int) -> Callable[[int], Any]:
    return lambda n: mx.nd.softmax(mx.nd.array(RNG.randn(n, *shape)))


def any_class(n: int) -> Any:
    return mx.nd.array(RNG.randint(-3, 6, (n, 6, 5)))


CASES = {
    "accuracy": (lambda: M.Accuracy(), classes((), 5), scores(5)),
    "accuracy of int labels in a column": (lambda: M.Accuracy(), classes((1,), 5, INT), scores(5)),
    "accuracy of classes": (lambda: M.Accuracy(), classes((3,), 2), classes((3,), 2, "int64")),
    "accuracy of one logit": (lambda: M.Accuracy(), classes((), 2), scores(1)),
    "accuracy of pixels": (lambda: M.Accuracy(), classes((4, 6), 3, "uint8"), scores(3, 4, 6)),
    "accuracy of tokens": (lambda: M.Accuracy(axis=-1, name="tokens"), classes((7,), 4), scores(7, 4)),
    "top 2": (lambda: M.TopKAccuracy(2), classes((), 5), scores(5)),
    "top 3 of 3 in a column": (lambda: M.TopKAccuracy(3), classes((1,), 3, INT), scores(3)),
    "binary accuracy of ints": (lambda: BinaryAccuracy(-0.5), classes((1,), 2, INT), classes((), 2, INT)),
    # a mean of values of both signs may come close to 0, where no relative error means anything
    "loss": (lambda: M.Loss(), scores(), amounts()),
    "loss of tokens": (lambda: M.Loss("tokens"), scores(), amounts(7)),
    "MAE": (lambda: M.MAE(), scores(), scores(1)),
    "MSE of int labels": (lambda: M.MSE(), classes((), 9, INT), scores()),
    "MSE of maps": (lambda: M.MSE(), scores(3, 4, 5), scores(3, 4, 5)),
    "RMSE": (lambda: M.RMSE(), scores(1), scores()),
    "cross entropy": (lambda: M.CrossEntropy(), classes((), 5), chances(5)),
    "cross entropy from the end": (lambda: M.CrossEntropy(), lambda n: -1 - classes((1,), 5)(n), chances(5)),
    "negative log likelihood": (lambda: M.NegativeLogLikelihood(1e-3), classes((), 5, INT), chances(5)),
    "perplexity": (lambda: M.Perplexity(None), classes((), 5), chances(5)),
    "perplexity that ignores": (lambda: M.Perplexity(0), classes((1,), 3, INT), chances(3)),
    "F1 macro": (lambda: M.F1(), classes((), 2), scores(2)),
    "F1 micro": (lambda: M.F1(average="micro"), classes((), 2, INT), scores(2)),
    "MCC micro": (lambda: M.MCC(average="micro"), classes((), 2), scores(3)),
    "segmentation": (lambda: SegmentationMetric(4), classes((6, 5), 4, INT), scores(4, 6, 5)),
    "segmentation, ignored and unknown": (lambda: SegmentationMetric(3), any_class, scores(3, 6, 5)),
    "segmentation with fewer scores": (lambda: SegmentationMetric(4), classes((6, 5), 4), scores(2, 6, 5)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("pairs", "devices", "traced"), [(1, 1, False), (2, 2, True)])
def test_equals_the_metric(case: str, pairs: int, devices: int, traced: bool) -> None:
    metric, label, output = CASES[case]
    batches = [
        [([label(n) for _ in range(pairs)], [output(n) for _ in range(pairs)]) for n in sizes[:devices]]
        for sizes in [(8, 5), (8, 5), (3, 2)]
    ]
    check_agreement(metric(), batches, traced)


@pytest.mark.parametrize("case", ["accuracy", "negative log likelihood", "perplexity that ignores"])
def test_tokens_in_rows_of_their_own(case: str) -> None:
    """Labels (N, 7) of outputs (N * 7, C)."""
    metric = CASES[case][0]()
    label, output = classes((7,), 3), chances(3)
    batches = [[([label(n)], [output(7 * n)]) for n in sizes] for sizes in [(8, 5), (3, 2)]]
    check_agreement(metric, batches, traced=True)


@pytest.mark.parametrize("case", CASES)
def test_no_gradient_flows_through_statistics(case: str) -> None:
    metric, label, output = CASES[case]
    device, labels, outputs = device_metric(metric()), label(6), output(6).astype("float32")
    assert device.bind([labels.shape], [outputs.shape])

    class Step(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, labels: Any, outputs: Any) -> Any:
            pieces = device.statistics(F, [labels], [outputs])
            return F.sum(outputs * 2), F.concat(*pieces, dim=0) if len(pieces) > 1 else pieces[0]

    step = Step()
    step.hybridize(static_alloc=True)
    outputs.attach_grad()
    with mx.autograd.record():
        objective, statistics = step(labels, outputs)
    mx.autograd.backward([objective, statistics])
    np.testing.assert_array_equal(outputs.grad.asnumpy(), np.full(outputs.shape, 2.0, "float32"))
    assert np.isfinite(statistics.asnumpy()).all()


def test_without_a_batch_it_equals_a_new_metric() -> None:
    for case, (make, *_) in CASES.items():
        metric = make()
        expected = metric.get()
        device = device_metric(metric)
        device.load(np.zeros(device.width))
        np.testing.assert_array_equal(metric.get()[-1], expected[-1], err_msg=case)
