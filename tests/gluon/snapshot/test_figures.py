"""A stage goes on with its sums and its metrics where it was."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MetricSpec, TaskSpec, TrainerSpec
from multifit.gluon.evaluation import predict_batch
from multifit.gluon.metrics.stage_figures import StageFigures
from multifit.gluon.metrics.stage_metric import Place, StageMetric
from multifit.gluon.snapshot import load_stage_state, read_tree, stage_state, write_tree

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip


class Odd(mx.metric.EvalMetric):
    """A metric that keeps what cannot be saved."""

    def __init__(self) -> None:
        super().__init__("odd")

    def reset(self) -> None:
        super().reset()
        self.seen: set[float] = set()

    def update(self, labels: Any, preds: Any) -> None:
        self.seen |= set(labels[0].asnumpy().ravel().tolist())
        self.sum_metric, self.num_inst = len(self.seen), 1


class Slots:
    """A metric without a ``__dict__``."""

    __slots__ = ("count",)

    def reset(self) -> None:
        self.count = 0

    def update(self, labels: Any, preds: Any) -> None:
        self.count += 1

    def get(self) -> tuple[str, float]:
        return "slots", self.count


def again(tmp_path, stage: Any, lost: list[str]) -> Any:
    write_tree(tmp_path, "stage", stage_state(stage, lost))
    return read_tree(tmp_path, "stage")


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("weight", [0.5, lambda state: 0.5])
def test_sums_go_on_exactly(tmp_path, make_engine, batches, train, devices, weight):
    losses = {"digit": gluon.loss.SoftmaxCrossEntropyLoss(), "size": gluon.loss.L2Loss()}
    losses["size"] = LossSpec(losses["size"], weight=weight, normalize_by=lambda slots: slots["size"] != 0)
    still = {"body": _still("body.*"), "heads": _still("(digit|size).*")}
    whole, first, second = (make_engine(devices, still, losses=losses) for _ in range(3))
    for engine in (first, second):  # all three have the same parameters, which do not move
        engine.model.initialize()
        predict_batch(engine, (batches[0][0],))
    whole.model.initialize()
    predict_batch(whole, (batches[0][0],))
    for engine in (first, second):
        for a, b in zip(engine.model.parameters.values(), whole.model.parameters.values()):
            a.set_data(b.data(mx.cpu(0)))
    train(whole, batches)
    train(first, batches[:3])
    lost: list[str] = []
    state = again(tmp_path, first.stages["train"].figures, lost)
    assert lost == []
    load_stage_state(second.stages["train"].figures, state)
    train(second, batches[3:], 3)
    assert second.stages["train"].figures.read() == whole.stages["train"].figures.read()
    tallies = [engine.stages["train"].figures.sums for engine in (second, whole)]
    assert (tallies[0].batches, tallies[0].samples) == (tallies[1].batches, tallies[1].samples) == (6, 45)


def _still(pattern: str) -> Any:
    return TrainerSpec(pattern, "sgd", {"learning_rate": 0.0})


def test_what_was_loaded_is_a_copy(make_engine, batches, train):
    one, two = make_engine(), make_engine()
    train(one, batches[:2])
    figures, state = one.stages["train"].figures.read(), stage_state(one.stages["train"].figures)
    train(two, batches[:1])
    load_stage_state(two.stages["train"].figures, state)
    train(two, batches[1:3], 1)
    assert one.stages["train"].figures.read() == figures
    assert two.stages["train"].figures.read() != figures


def metric_stage(metric: Any, names: Any = None) -> StageFigures:
    spec = TaskSpec(outputs=["o"], labels=["l"], metrics={"m": MetricSpec(metric, "o", "l", names=names)})
    return StageFigures(spec, [StageMetric(spec.metric_terms[0], metric)], one_device=True)


def fed(stage: Any, seed: int) -> None:
    random = np.random.RandomState(seed)
    labels = [mx.nd.array(random.randint(0, 2, 8))]
    stage.metrics[0].metric.update(labels, [mx.nd.array(random.rand(8, 2))])
    stage.metrics[0].measured = True


METRICS = [
    mx.metric.Accuracy, lambda: mx.metric.TopKAccuracy(2), mx.metric.F1, mx.metric.MCC, mx.metric.PCC,
    lambda: mx.metric.Perplexity(None), mx.metric.CrossEntropy, lambda: mx.metric.PearsonCorrelation(),
    lambda: mx.metric.CompositeEvalMetric([mx.metric.Accuracy(), mx.metric.F1()]),
    lambda: mx.metric.CompositeEvalMetric([mx.metric.CompositeEvalMetric([mx.metric.Accuracy()])]),
    lambda: mx.metric.CustomMetric(lambda label, pred: float(pred[:, 1].mean())),
]  # fmt: skip


@pytest.mark.parametrize("make", METRICS)
def test_metrics_go_on_exactly(tmp_path, make):
    whole, first, second = (metric_stage(make()) for _ in range(3))
    if isinstance(make(), mx.metric.PearsonCorrelation):
        for stage in (whole, first, second):
            _single_column(stage)
    for seed in range(4):
        fed(whole, seed)
    for seed in (0, 1):
        fed(first, seed)
    load_stage_state(second, again(tmp_path, first, []))
    for seed in (2, 3):
        fed(second, seed)
    assert repr(second.metrics[0].metric.get()) == repr(whole.metrics[0].metric.get())


def _single_column(stage: Any) -> None:
    metric = stage.metrics[0].metric
    update = metric.update
    metric.update = lambda labels, preds: update(labels, [preds[0][:, 1]])


def test_gluoncv_s_metrics_go_on_exactly(tmp_path):
    voc = pytest.importorskip("gluoncv.utils.metrics.voc_detection")
    random = np.random.RandomState(0)

    def update(metric: Any, boxes: Any) -> None:
        scores, classes = random.rand(2, 30), random.randint(0, 2, (2, 30)).astype("float32")
        metric.update(boxes, classes, scores.astype("float32"), boxes[:, :4], classes[:, :4])

    stages = [metric_stage(voc.VOC07MApMetric(class_names=["a", "b"])) for _ in range(3)]
    found = [random.rand(2, 30, 4).astype("float32") for _ in range(4)]
    for boxes in found[:2]:
        state = random.get_state()
        for stage in stages[:2]:
            random.set_state(state)
            update(stage.metrics[0].metric, boxes)
    load_stage_state(stages[2], again(tmp_path, stages[1], []))
    assert (tmp_path / "stage.npz").exists()
    for boxes in found[2:]:
        state = random.get_state()
        for stage in (stages[0], stages[2]):
            random.set_state(state)
            update(stage.metrics[0].metric, boxes)
    assert stages[2].metrics[0].metric.get() == stages[0].metrics[0].metric.get()
    assert 0 < stages[2].metrics[0].metric.get()[1][-1] < 1


def test_gluoncv_s_segmentation_keeps_its_lock(tmp_path):
    segmentation = pytest.importorskip("gluoncv.utils.metrics.segmentation")
    one, two = (metric_stage(segmentation.SegmentationMetric(2)) for _ in range(2))
    lock = two.metrics[0].metric.lock
    label, output = mx.nd.array([[[0, 1], [1, 1]]]), mx.nd.random.uniform(shape=(1, 2, 2, 2))
    one.metrics[0].metric.update([label], [output])
    lost: list[str] = []
    load_stage_state(two, again(tmp_path, one, lost))
    assert lost == []
    assert two.metrics[0].metric.get() == one.metrics[0].metric.get()
    assert two.metrics[0].metric.lock is lock
    assert isinstance(lock, type(threading.Lock()))


@pytest.mark.parametrize("make", [Odd, Slots])
def test_a_metric_that_cannot_be_saved_is_named_and_begins_anew(tmp_path, make):
    one, two = (metric_stage(make()) for _ in range(2))
    for stage in (one, two):
        stage.metrics[0].metric.reset()
    fed(one, 0)
    lost: list[str] = []
    load_stage_state(two, again(tmp_path, one, lost))
    assert lost == ["m"]
    assert not two.metrics[0].measured
    assert np.isnan(two.metrics[0].figures()["m"])


def test_another_metric_s_state_is_refused():
    state = stage_state(metric_stage(mx.metric.Accuracy()))
    match = r'metrics\["m"\]: the state is of a mxnet.metric.Accuracy, the metric is a mxnet.metric.F1'
    with pytest.raises(ValueError, match=match):
        load_stage_state(metric_stage(mx.metric.F1()), state)


def test_where_a_figure_is_made_is_settled_with_the_first_batch(make_engine, batches, train):
    engine = make_engine()
    stage = engine.stages["train"]
    accuracy, error = stage.figures.metrics
    assert [stage_state(stage.figures)["measures"][m.term.key]["settled"] for m in stage.figures.metrics] == [
        False,
        False,
    ]
    train(engine, batches[:1])
    state = stage_state(stage.figures)
    stage.reset()
    after = stage_state(stage.figures)
    for found in (state, after):  # a new epoch does not decide anew
        assert [found["measures"][m.term.key]["settled"] for m in (accuracy, error)] == [True, True]
        assert [found["measures"][m.term.key]["on_device"] for m in (accuracy, error)] == [True, False]
    engine.restart()
    assert accuracy.place is Place.UNDECIDED
    load_stage_state(engine.stages["train"].figures, after)
    assert (accuracy.place, error.place) == (Place.DEVICE, Place.HOST)
    assert stage_state(engine.stages["train"].figures)["measures"]["error"]["settled"]


def test_a_metric_that_is_new_begins_empty():
    stage = metric_stage(mx.metric.Accuracy())
    state = {**stage_state(stage), "measures": {}}
    load_stage_state(stage, state)
    assert not stage.metrics[0].measured
