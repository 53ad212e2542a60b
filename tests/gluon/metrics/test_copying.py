"""Copies of metrics are independent and reset; they share only what cannot or must not be copied."""

from typing import Any

import pytest
from gluoncv.utils.metrics.segmentation import SegmentationMetric
from gluoncv.utils.metrics.voc_detection import VOCMApMetric

from multifit.gluon.metrics import copy_metric

import mxnet as mx  # isort: skip

M = mx.metric


class OfANet(M.EvalMetric):
    """A metric that holds a net and an array."""

    def __init__(self, net: Any) -> None:
        super().__init__("of_a_net")
        self.net = net
        self.seen = (mx.nd.zeros((2,)), [M.Accuracy()])


@pytest.mark.parametrize(
    "metric",
    [M.Accuracy(axis=-1, name="tokens"), M.F1(average="micro"), M.TopKAccuracy(3), M.PCC(), M.MCC()],
    ids=lambda metric: type(metric).__name__,
)
def test_a_copy_has_the_same_options_and_is_reset(metric: Any) -> None:
    labels, outputs = mx.nd.array([0, 1, 1]), mx.nd.array([[0, 1, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]])
    metric.update([labels], [outputs])
    before = metric.get()
    twin = copy_metric(metric)
    assert type(twin) is type(metric)
    assert twin.name == metric.name
    assert twin.get_config() == metric.get_config()
    assert twin.num_inst == 0
    assert metric.get() == before
    twin.update([labels], [outputs])
    assert twin.get() == before
    twin.update([labels], [outputs])
    assert metric.get() == before


def test_a_lock_is_shared_and_nothing_else() -> None:
    metric = SegmentationMetric(3)
    labels, outputs = mx.nd.zeros((1, 2, 2)), mx.nd.one_hot(mx.nd.zeros((1, 2, 2)), 3).transpose((0, 3, 1, 2))
    metric.update([labels], [outputs])
    inter = metric.total_inter.copy()
    twin = copy_metric(metric)
    assert twin.lock is metric.lock
    assert twin.get() == (0.0, 0.0)
    twin.update([labels], [outputs])
    twin.total_inter += 1
    assert (metric.total_inter == inter).all()


def test_metrics_in_a_composite_are_copied() -> None:
    metric = M.CompositeEvalMetric([M.Accuracy(), SegmentationMetric(3)])
    metric.metrics[0].update([mx.nd.ones((2,))], [mx.nd.ones((2,))])
    twin = copy_metric(metric)
    assert [type(child) for child in twin.metrics] == [M.Accuracy, SegmentationMetric]
    assert all(a is not b for a, b in zip(twin.metrics, metric.metrics))
    assert (twin.metrics[0].num_inst, metric.metrics[0].num_inst) == (0, 2)


def test_a_net_is_shared_and_an_object_that_is_held_twice_is_copied_once() -> None:
    metric = OfANet(mx.gluon.nn.Dense(2))
    metric.best, metric.itself, metric.array = metric.seen[1][0], metric, metric.seen[0]
    twin = copy_metric(metric)
    assert twin.net is metric.net
    twin.seen[0][:] = 1
    assert metric.seen[0].sum().asscalar() == 0
    assert twin.best is twin.seen[1][0] is not metric.best
    assert twin.itself is twin and twin.array is twin.seen[0]


def test_state_made_at_the_first_update_is_not_shared() -> None:
    metric = VOCMApMetric(class_names=["a"])
    box, one = mx.nd.array([[[0, 0, 9, 9]]]), mx.nd.zeros((1, 1))
    metric.update(box, one, one + 1, box, one)
    twin = copy_metric(metric)
    twin.update(box + 20, one, one + 1, box, one)
    assert (metric.get()[1][-1], twin.get()[1][-1]) == (1.0, 0.0)


def test_a_function_is_shared() -> None:
    metric = M.create(lambda label, pred: 3.0)
    twin = copy_metric(metric)
    twin.update([mx.nd.ones((2,))], [mx.nd.ones((2,))])
    assert twin.get()[1] == 3.0 and metric.num_inst == 0
