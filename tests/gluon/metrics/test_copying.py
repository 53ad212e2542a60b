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
    [M.Accuracy(axis=-1, name="tokens"), M.F1(average="micro"), M.TopKAccuracy(3), M.PCC()],
    ids=lambda metric: type(metric).__name__,
)
def test_a_copy_has_the_same_options_and_is_reset(metric: Any) -> None:
    labels, outputs = mx.nd.array([0, 1, 1]), mx.nd.array([[0, 1, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]])
    metric.update([labels], [outputs])
    before = metric.get()
    twin = copy_metric(metric)
    assert type(twin) is type(metric) and twin.get_config() == metric.get_config()
    assert twin.num_inst == 0
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
    metric = M.CompositeEvalMetric([VOCMApMetric(class_names=["a"])])
    box, one = mx.nd.array([[[0, 0, 9, 9]]]), mx.nd.zeros((1, 1))
    metric.metrics[0].update(box, one, one + 1, box, one)
    twin = copy_metric(metric)
    twin.metrics[0].update(box + 20, one, one + 1, box, one)
    assert [each.metrics[0].get()[1][-1] for each in (metric, twin)] == [1.0, 0.0]
