"""Handlers that somebody wrote for Gluon's Estimator run in ours unchanged."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon.contrib.estimator import event_handler as theirs

from multifit import Every, LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from tests.common.compare import snapshot
from tests.common.grids import TWO
from tests.common.nets import two_heads
from tests.common.specs import CE, L2, two_head_spec

SEVERAL = {
    "body": TrainerSpec("body.*", "adam", {"learning_rate": 0.02}),
    "heads": TrainerSpec("(digit|size).*", "sgd", {"learning_rate": 0.1, "momentum": 0.9}),
}


ONE_TRAINER = TrainerSpec(".*", "adam", {"learning_rate": 0.02})
BOTH = pytest.mark.parametrize("trainers", [ONE_TRAINER, SEVERAL], ids=["one", "several"])


def make(trainers: Any = SEVERAL, **changes: Any) -> MultiEstimator:
    return MultiEstimator(two_heads(), two_head_spec(**changes), trainers)


def test_stopping(batches: Any) -> None:
    estimator = make()
    handler = theirs.StoppingHandler()
    assert estimator.fit(batches, epochs=2, event_handlers=handler).epochs == 2
    assert (handler.max_epoch, handler.current_batch) == (2, 6)


def test_stopping_sooner(batches: Any) -> None:
    class Sooner(theirs.StoppingHandler):
        def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
            super().train_begin(estimator)
            self.max_batch = 4

    estimator = make()
    estimator.fit(batches, epochs=5, event_handlers=Sooner())
    assert (estimator.state.step, estimator.state.stop_reason) == (4, "Sooner")


def test_metric(batches: Any) -> None:
    """A metric of the user's own, updated by Gluon's handler: with two heads it is handed dicts."""
    accuracy = mx.metric.Accuracy()

    class OfDigit(theirs.MetricHandler):
        def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
            facts = {name: kwargs[name]["digit"] for name in ("pred", "label", "loss")}
            super().batch_end(estimator, **facts)

    history = make().fit(batches, epochs=2, event_handlers=OfDigit([accuracy]))
    assert accuracy.get()[1] == history["train_accuracy"][-1]


def test_metric_of_a_single_output(batches: Any) -> None:
    net = mx.gluon.nn.Dense(3)
    accuracy, loss = mx.metric.Accuracy(), mx.metric.Loss()
    estimator = MultiEstimator(net, mx.gluon.loss.SoftmaxCrossEntropyLoss(), context=TWO)
    history = estimator.fit(
        [batch[:2] for batch in batches], epochs=1, event_handlers=theirs.MetricHandler([accuracy, loss])
    )
    assert accuracy.get()[1] == history["train_accuracy"][0]
    assert loss.get()[1] == pytest.approx(history["train_loss"][0])


def test_the_estimators_metrics_are_not_updated_twice(batches: Any) -> None:
    estimator = make()
    history = estimator.fit(batches, epochs=1, event_handlers=theirs.MetricHandler(estimator.train_metrics))
    assert [metric.get()[1] for metric in estimator.train_metrics] == [
        history["train_accuracy"][0],
        history["train_loss"][0],
    ]


@pytest.mark.parametrize(("periods", "values"), [({}, 2), ({"epoch_period": None, "batch_period": 4}, 1)])
def test_validation(batches: Any, periods: dict[str, Any], values: int) -> None:
    estimator = make()
    calls = []

    class Heard(theirs.EpochBegin, theirs.BatchEnd, theirs.EpochEnd):
        def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
            calls.append(sorted(kwargs))

    handler = theirs.ValidationHandler(batches, estimator.evaluate, event_handlers=[Heard()], **periods)
    history = estimator.fit(batches, epochs=2, event_handlers=handler)
    assert np.isfinite(history["val_loss"]).sum() == values
    assert calls == [["batch", "label", "loss", "pred"]] * 3 * values


@pytest.mark.parametrize("interval", ["epoch", 2])
@BOTH
def test_logging(trainers: Any, batches: Any, interval: Any, log: Any) -> None:
    estimator = make(trainers)
    handler = theirs.LoggingHandler(interval, estimator.train_metrics + estimator.val_metrics)
    history = estimator.fit(batches, batches, epochs=2, event_handlers=handler)
    lines = log()
    assert any(
        "Training begin: using optimizer Adam with current learning rate 0.0200" in line for line in lines
    )
    assert any("[Epoch 0] Begin, current learning rate: 0.0200" in line for line in lines)
    assert any(f"val_accuracy: {history['val_accuracy'][1]:.4f}" in line for line in lines)
    assert any("Train finished using total 0s with 2 epochs" in line for line in lines)
    assert any("[Epoch 1][Batch 2]" in line for line in lines) == (interval == 2)
    assert not any(line.startswith("epoch 1/2") for line in lines)  # it has taken the place of ours


def test_logging_of_an_evaluation(batches: Any, log: Any) -> None:
    estimator = make()
    figures = estimator.evaluate(batches, event_handlers=theirs.LoggingHandler(metrics=estimator.val_metrics))
    assert "Validation Begin" in log()
    assert f"val_loss: {figures['loss']:.4f}" in log()[-1]


@BOTH
def test_checkpoint(trainers: Any, batches: Any, tmp_path: Path) -> None:
    estimator = make(trainers)
    handler = theirs.CheckpointHandler(str(tmp_path), max_checkpoints=2)
    estimator.fit(batches, epochs=3, event_handlers=handler)
    stems = {"model-epoch1batch6", "model-epoch2batch9"}
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{s}.{e}" for s in stems for e in ("params", "states")
    }

    resumed = make(trainers)
    handler = theirs.CheckpointHandler(str(tmp_path), resume_from_checkpoint=True)
    assert resumed.fit(batches, epochs=5, event_handlers=handler).epochs == 2  # three were done before
    estimator.fit(batches, epochs=2)
    for value, expected in zip(snapshot(resumed.net).values(), snapshot(estimator.net).values()):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-7)


def test_checkpoint_of_every_few_batches(batches: Any, tmp_path: Path) -> None:
    handler = theirs.CheckpointHandler(str(tmp_path), epoch_period=None, batch_period=2)
    make().fit(batches, batches=4, event_handlers=handler)
    assert {path.suffix for path in tmp_path.iterdir()} == {".params", ".states"}
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("which", ["val_metrics", "train_metrics", "own"])
def test_checkpoint_of_the_best(batches: Any, tmp_path: Path, which: str) -> None:
    own = mx.metric.Accuracy()
    estimator = make(metrics={"accuracy": MetricSpec(own, "digit", "digit")})
    monitor = own if which == "own" else getattr(estimator, which)[0]
    handler = theirs.CheckpointHandler(str(tmp_path), monitor=monitor, save_best=True, mode="max")
    history = estimator.fit(batches, batches, epochs=4, event_handlers=handler)
    figure = "val_accuracy" if which == "val_metrics" else "train_accuracy"
    assert handler.best == max(history[figure])
    assert (tmp_path / "model-best.params").exists()
    assert (tmp_path / "model-best.states").exists()


@pytest.mark.parametrize("which", ["val_metrics", "train_metrics"])
def test_early_stopping(batches: Any, which: str) -> None:
    estimator = make()
    monitor = getattr(estimator, which)[-1]
    handler = theirs.EarlyStoppingHandler(monitor, mode="min", baseline=-1.0, patience=2)
    history = estimator.fit(batches, batches, epochs=9, event_handlers=handler)
    assert history.epochs == 2
    assert estimator.state.stop_reason == "EarlyStoppingHandler"


def test_early_stopping_follows_the_figure(batches: Any) -> None:
    estimator = make()
    handler = theirs.EarlyStoppingHandler(estimator.val_metrics[-1], mode="min", patience=1)
    history = estimator.fit(batches, batches, epochs=6, event_handlers=handler)
    losses = history["val_loss"]
    falling = all(after < before for before, after in zip(losses, losses[1:]))
    assert falling == (history.epochs == 6)
    assert handler.best == min(losses)


@pytest.mark.parametrize("which", ["val_metrics", "train_metrics"])
def test_a_monitor_without_validation_data_is_an_error(batches: Any, which: str, tmp_path: Path) -> None:
    for number, make_handler in enumerate((theirs.EarlyStoppingHandler, theirs.CheckpointHandler)):
        estimator = make()
        monitor = getattr(estimator, which)[-1]
        options = {"model_dir": str(tmp_path), "save_best": True} if number else {}
        handler = make_handler(monitor=monitor, mode="min", **options)
        if which == "train_metrics":
            assert estimator.fit(batches, epochs=1, event_handlers=handler).epochs == 1
        else:
            match = 'Handler: there is no figure "val_loss".*; val_ figures need validation data'
            with pytest.raises(ValueError, match=match):
                estimator.fit(batches, epochs=1, event_handlers=handler)
            assert estimator.state.step == 0


def test_the_gradient_update_handler_is_an_error(batches: Any) -> None:
    with pytest.raises(ValueError, match="GradientUpdateHandler would update the parameters a second time"):
        make().fit(batches, epochs=1, event_handlers=[theirs.GradientUpdateHandler()])


class Everything(
    theirs.TrainBegin, theirs.EpochBegin, theirs.BatchBegin, theirs.BatchEnd, theirs.EpochEnd, theirs.TrainEnd
):
    """Uses all that Gluon's Estimator offers its handlers."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.facts: dict[str, Any] = {}

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        assert estimator.trainer.learning_rate > 0
        assert estimator.context == TWO
        assert (estimator.max_epoch, estimator.max_batch, estimator.batch_axis) == (1, None, 0)
        self.events.append("train_begin")

    def epoch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        self.events.append("epoch_begin")

    def batch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        self.events.append("batch_begin")
        assert list(kwargs) == ["batch"]

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> bool:
        self.events.append("batch_end")
        self.facts = kwargs
        return False

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> bool:
        self.events.append("epoch_end")
        return False

    def train_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        self.events.append("train_end")


def shapes(lists: Any) -> Any:
    return [array.shape for array in lists]


def test_a_custom_handler_with_several_outputs(batches: Any) -> None:
    handler = Everything()
    estimator = MultiEstimator(two_heads(), two_head_spec(), context=TWO)
    estimator.fit(batches[:2], epochs=1, event_handlers=handler)
    batch = ["batch_begin", "batch_end"]
    assert handler.events == ["train_begin", "epoch_begin", *batch, *batch, "epoch_end", "train_end"]
    facts = handler.facts
    assert facts["batch"] is batches[1]
    expected = {
        "pred": {"digit": [(4, 3)] * 2, "size": [(4, 1)] * 2},
        "label": {"digit": [(4,)] * 2, "size": [(4, 1)] * 2},
        "loss": {"digit": [(4,)] * 2, "size": [(4,)] * 2},
    }
    for fact, slots in expected.items():
        assert {name: shapes(arrays) for name, arrays in facts[fact].items()} == slots


def test_a_custom_handler_with_one_output(batches: Any) -> None:
    handler = Everything()
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    estimator = MultiEstimator(mx.gluon.nn.Dense(3), loss, context=TWO)
    estimator.fit([batches[0][:2]], epochs=1, event_handlers=handler)
    facts = handler.facts
    expected = [[(4, 3)] * 2, [(4,)] * 2, [(4,)] * 2]
    assert [shapes(facts[name]) for name in ("pred", "label", "loss")] == expected
    np.testing.assert_array_equal(np.concatenate([part.asnumpy() for part in facts["label"]]), batches[0][1])


def test_metrics_can_be_read_within_an_epoch(batches: Any, arrays: Any) -> None:
    estimator = make()
    assert [metric.get()[0] for metric in estimator.train_metrics] == ["train_accuracy", "train_loss"]
    assert [metric.get()[0] for metric in estimator.val_metrics] == ["val_accuracy", "val_loss"]
    assert all(isinstance(m, mx.metric.EvalMetric) for m in estimator.train_metrics + estimator.val_metrics)
    assert all(math.isnan(metric.get()[1]) for metric in estimator.train_metrics)
    held = estimator.train_metrics
    seen = []

    class Middle(theirs.BatchEnd):
        def __init__(self) -> None:
            self.right = self.samples = 0

        def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
            (pred,), (label,) = kwargs["pred"]["digit"], kwargs["label"]["digit"]
            self.right += (pred.asnumpy().argmax(axis=1) == label.asnumpy()).sum()
            self.samples += len(label)
            seen.append((held[0].get()[1], self.right / self.samples))

    history = estimator.fit(batches, batches, epochs=1, event_handlers=Middle())
    assert len(seen) == 3
    for value, expected in seen:
        assert value == pytest.approx(expected)
    assert held[0].get() == ("train_accuracy", history["train_accuracy"][0])
    assert dict(metric.get() for metric in estimator.val_metrics) == {
        "val_accuracy": history["val_accuracy"][0],
        "val_loss": history["val_loss"][0],
    }


@pytest.mark.parametrize("kind", [mx.metric.Accuracy, mx.metric.F1])  # summed on the device; on the host
def test_a_handler_that_holds_a_declared_metric_reads_its_figure(kind: type, batches: Any, log: Any) -> None:
    """Gluon's LoggingHandler takes a pass for a validation unless a metric's name says "training"."""
    own = kind()
    data = [(batch[0], (batch[1] > 0).astype("float32")) for batch in batches]
    spec = TaskSpec("out", "y", {"l": LossSpec(CE, "out", "y")}, {"own": MetricSpec(own, "out", "y")})
    seen = []

    class Reads(theirs.BatchEnd):
        monitor = own

        def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
            assert isinstance(self.monitor, kind)
            seen.append(self.monitor.get()[1])

    logging, metrics = theirs.LoggingHandler(1, [own]), theirs.MetricHandler([own])
    handlers = [logging, metrics, Every(1, "batch", Reads())]
    history = MultiEstimator(mx.gluon.nn.Dense(2), spec).fit(data, epochs=1, event_handlers=handlers)
    lines = [line for line in log() if "[Batch" in line]
    assert len(lines) == len(seen) == 3 and all(np.isfinite(seen))
    assert seen[-1] == pytest.approx(history["train_own"][0])  # not updated twice
    assert [f"train_own: {value:.4f}" in line for line, value in zip(lines, seen)] == [True] * 3
    assert not any("Validation Begin" in line for line in log())
    assert logging.metrics == metrics.metrics == [own]  # as before the fit


def test_a_logged_metric_must_be_updated_by_somebody(batches: Any) -> None:
    other, part = mx.metric.RMSE("other"), mx.metric.MAE()
    composite = mx.metric.CompositeEvalMetric([part])
    estimator = make(metrics={"both": MetricSpec(composite, "size", "size")}, unused=["digit"])
    with pytest.raises(ValueError, match='LoggingHandler: nothing updates its metric "other"; declare it'):
        estimator.fit(batches, epochs=1, event_handlers=theirs.LoggingHandler(metrics=[other]))

    class Updates:
        def __init__(self) -> None:
            self.held = [other]

        def batch_end(self, estimator: Any, pred: Any, label: Any) -> None:
            other.update(label["size"], pred["size"])

    handlers = [Updates(), theirs.LoggingHandler(metrics=[other, part])]
    assert estimator.fit(batches, epochs=1, event_handlers=handlers).epochs == 1


def test_a_validation_metric_can_be_monitored_only_with_validation_data(batches: Any) -> None:
    class Unknown(mx.metric.MSE):
        """A metric of which the estimator does not know which direction is better; the handler does."""

    estimator = make(metrics={"odd": MetricSpec(Unknown(), "size", "size")})
    handler = theirs.EarlyStoppingHandler(estimator.val_metrics[0], mode="min", patience=9)
    with pytest.raises(
        ValueError, match='EarlyStoppingHandler: there is no figure "val_odd".*validation data'
    ):
        estimator.fit(batches, epochs=1, event_handlers=handler)
    assert estimator.fit(batches, batches, epochs=2, event_handlers=handler).epochs == 2


def test_the_estimators_metrics_are_instances_of_their_classes() -> None:
    estimator = make()
    for metrics in (estimator.train_metrics, estimator.val_metrics):
        assert [isinstance(m, k) for m, k in zip(metrics, (mx.metric.Accuracy, mx.metric.Loss))] == [True] * 2


def test_what_else_gluons_estimator_offers(batches: Any) -> None:
    several = make(evaluate=two_head_spec(losses={"size": L2}))
    assert several.loss == {"digit": CE, "size": L2} and several.val_loss is L2
    assert several.val_net is several.net
    estimator = MultiEstimator(mx.gluon.nn.Dense(3), CE)
    assert estimator.loss is estimator.val_loss is CE
    batch = batches[0][:2]
    for run in (estimator.batch_processor.fit_batch, estimator.batch_processor.evaluate_batch):
        arrays = run(estimator, batch, 0)
        assert [shapes(each) for each in arrays] == [[(8, 6)], [(8,)], [(8, 3)], [(8,)]]
    data, *_ = several.batch_processor.evaluate_batch(several, batches[0])
    assert shapes(data) == [(8, 6)]


def test_metrics_of_several_figures(batches: Any) -> None:
    spread = MetricSpec(
        mx.metric.CompositeEvalMetric([mx.metric.MSE(), mx.metric.MAE()]), "size", "size", mode="min"
    )
    estimator = make(metrics={"spread": spread}, unused=["digit"])
    history = estimator.fit(batches, epochs=1)
    names, values = estimator.train_metrics[0].get()
    assert names == ["train_spread.mse", "train_spread.mae"]
    assert values == [history[name][0] for name in names]
