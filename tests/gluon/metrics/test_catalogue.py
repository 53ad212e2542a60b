"""Which metrics are known, by name and by class; copies are independent and reset."""

from types import SimpleNamespace
from typing import Any

import pytest
from gluoncv.utils.metrics.coco_detection import COCODetectionMetric
from gluoncv.utils.metrics.segmentation import SegmentationMetric
from gluoncv.utils.metrics.voc_detection import VOC07MApMetric, VOCMApMetric

from multifit import MetricSpec, SpecError
from multifit.gluon.metrics import BinaryAccuracy, copy_metric, device_metric, direction, figure_names
from multifit.gluon.metrics.catalogue import KNOWN, counts_whole_pass
from multifit.gluon.metrics.host import Measured, as_metric, update
from multifit.spec.terms import LABELS, OUTPUTS, MetricTerm, Ref

import mxnet as mx  # isort: skip

M, nd = mx.metric, mx.nd
REFS = Ref(OUTPUTS, "o"), Ref(LABELS, "y")
STOCK = [
    value
    for value in vars(M).values()
    if isinstance(value, type) and issubclass(value, M.EvalMetric) and value.__module__ == M.__name__
]
OWNED = {M.EvalMetric, M.CompositeEvalMetric, M.CustomMetric}  # without a value of their own


class Negated(M.Accuracy):
    """A subclass with the opposite direction."""

    def get(self) -> tuple:
        name, value = super().get()
        return name, -value


def replaced() -> Any:
    metric = M.Accuracy()
    metric.update = lambda labels, preds: None
    return metric


def test_which_metrics_are_computed_on_the_device_and_which_count_the_whole_pass() -> None:
    own, two = M.create(lambda label, pred: 0.0), M.CompositeEvalMetric([M.Accuracy(), Negated()])
    whole = [M.PCC(), M.CompositeEvalMetric([M.Accuracy(), own]), SegmentationMetric(2)]
    unknown = [two, Negated(), replaced(), VOCMApMetric()]
    assert [counts_whole_pass(metric) for metric in (*whole, *unknown)] == [True] * 3 + [False] * 4
    unknown += [M.Accuracy(output_names=["a"]), *whole[:2], M.CompositeEvalMetric()]
    assert [device_metric(metric) for metric in unknown] == [None] * 8


def test_directions() -> None:
    assert {direction(kind.__new__(kind)) for kind in set(STOCK) - OWNED} == {"min", "max"}
    better_high = (M.Accuracy(), SegmentationMetric(2), BinaryAccuracy(), VOCMApMetric(), VOC07MApMetric())
    assert {direction(metric) for metric in better_high} == {"max"}
    assert KNOWN[f"{COCODetectionMetric.__module__}.{COCODetectionMetric.__qualname__}"][0] == "max"
    assert direction(M.Loss()) == direction(M.RMSE()) == "min"
    unknown = (Negated(), M.CompositeEvalMetric(), M.create(lambda label, pred: 0.0))
    assert {direction(metric) for metric in unknown} == {None}


def test_only_the_segmentation_metric_needs_names() -> None:
    names = [figure_names(metric) for metric in (SegmentationMetric(2), M.Accuracy(), VOCMApMetric())]
    assert names == [["pixAcc", "mIoU"], None, None]


NAMES = {
    "top_5": M.TopKAccuracy, "top_2_accuracy": M.TopKAccuracy, "top_1": M.Accuracy,
    "cross_entropy": M.CrossEntropy, "pearson": M.PearsonCorrelation,
}  # fmt: skip


def test_names_that_are_valid_for_nets_of_both_libraries() -> None:
    for name, kind in NAMES.items():
        metric = as_metric(MetricTerm("m", MetricSpec(name), ()))
        assert type(metric) is kind
        assert getattr(metric, "top_k", None) == (int(name[4]) if kind is M.TopKAccuracy else None)
    match = r'metrics\["m"\]: SimpleNamespace.* has no get\(\), as metrics of Gluon nets'
    with pytest.raises(SpecError, match=match):
        as_metric(MetricTerm("m", MetricSpec(SimpleNamespace(update=None, reset=None, compute=None)), ()))


class OfANet(M.EvalMetric):
    """A metric that holds a net and an array."""

    def __init__(self, net: Any) -> None:
        super().__init__("of_a_net")
        self.net = net
        self.seen = (nd.zeros((2,)), [M.Accuracy()])


def test_a_lock_and_a_net_are_shared_and_nothing_else() -> None:
    """An object that is held twice is copied once."""
    metric = SegmentationMetric(3)
    labels, outputs = nd.zeros((1, 2, 2)), nd.one_hot(nd.zeros((1, 2, 2)), 3).transpose((0, 3, 1, 2))
    metric.update([labels], [outputs])
    inter, twin = metric.total_inter.copy(), copy_metric(metric)
    assert twin.lock is metric.lock and twin.get() == (0.0, 0.0)
    twin.total_inter += 1
    assert (metric.total_inter == inter).all()
    metric = OfANet(mx.gluon.nn.Dense(2))
    metric.best, metric.itself, metric.array = metric.seen[1][0], metric, metric.seen[0]
    twin = copy_metric(metric)
    twin.seen[0][:] = 1
    assert twin.net is metric.net and metric.seen[0].sum().asscalar() == 0
    assert twin.best is twin.seen[1][0] is not metric.best
    assert twin.itself is twin and twin.array is twin.seen[0]


def test_state_made_at_the_first_update_is_not_shared() -> None:
    metric = M.CompositeEvalMetric([VOCMApMetric(class_names=["a"])])
    box, one = nd.array([[[0, 0, 9, 9]]]), nd.zeros((1, 1))
    metric.metrics[0].update(box, one, one + 1, box, one)
    twin = copy_metric(metric)
    twin.metrics[0].update(box + 20, one, one + 1, box, one)
    assert [each.metrics[0].get()[1][-1] for each in (metric, twin)] == [1.0, 0.0]


class Recorder(M.EvalMetric):
    """A metric with a signature of its own."""

    def update(self, boxes: Any, truth: Any) -> None:
        self.calls.append((boxes, truth))


@pytest.mark.parametrize("lists", [False, True])
def test_a_metric_of_another_signature_gets_lists_of_the_devices_arrays(lists: bool) -> None:
    """Unless transform returns lists of arrays: these are whole arguments."""
    transform = (lambda output, label: ([output], label)) if lists else None
    term = MetricTerm("m", MetricSpec(Recorder("own"), "o", "y", transform=transform), REFS)
    metric = Recorder("own")
    metric.calls = []
    arrays = [dict(zip(REFS, (nd.ones((n,)), nd.zeros((n,))))) for n in (2, 1)]
    update(metric, term, Measured(arrays, [{}, {}], [2, 1]))
    sizes = [[[each.size for each in value] for value in call] for call in metric.calls]
    assert sizes == ([[[2], [1, 1]], [[1], [1]]] if lists else [[[2, 1], [2, 1]]])
