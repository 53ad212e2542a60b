"""Handlers that somebody wrote for Gluon's Estimator run in ours unchanged."""

from __future__ import annotations

import math
import re
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
BOTH = pytest.mark.parametrize("trainers", [TrainerSpec(".*", "adam", {"learning_rate": 0.02}), SEVERAL])


def make(trainers: Any = SEVERAL, **changes: Any) -> MultiEstimator:
    return MultiEstimator(two_heads(), two_head_spec(**changes), trainers)


def test_stopping(batches: Any) -> None:
    handler = theirs.StoppingHandler()
    assert make().fit(batches, epochs=2, event_handlers=handler).epochs == 2
    assert (handler.max_epoch, handler.current_batch) == (2, 6)

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


def test_metrics_of_a_single_output_are_updated_once(batches: Any) -> None:
    estimator = MultiEstimator(mx.gluon.nn.Dense(3), CE, context=TWO)
    own = [mx.metric.Accuracy(), mx.metric.Loss()]
    handler = theirs.MetricHandler([*own, *estimator.train_metrics])
    history = estimator.fit([batch[:2] for batch in batches], epochs=1, event_handlers=handler)
    expected = [history["train_accuracy"][0], history["train_loss"][0]]
    for metrics in (own, estimator.train_metrics):
        assert [metric.get()[1] for metric in metrics] == pytest.approx(expected)


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


@pytest.mark.parametrize("priority", [-998, -950, 0])
def test_validation_comes_before_handlers_that_follow_gluons(batches: Any, priority: int) -> None:
    estimator = make()
    read = []

    class Best(theirs.EpochEnd):
        def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
            read.append([metric.get()[1] for metric in estimator.val_metrics])

    handler = Best()
    handler.priority = priority
    estimator.fit(batches, batches, epochs=2, event_handlers=handler)
    assert np.isfinite(read).all() and read[1] == [metric.get()[1] for metric in estimator.val_metrics]


@pytest.mark.parametrize("interval", ["epoch", 2])
@BOTH
def test_logging(trainers: Any, batches: Any, interval: Any, log: Any) -> None:
    estimator = make(trainers)
    handler = theirs.LoggingHandler(interval, estimator.train_metrics + estimator.val_metrics)
    history = estimator.fit(batches, batches, epochs=2, event_handlers=handler)
    lines = "\n".join(log())
    assert "Training begin: using optimizer Adam with current learning rate 0.0200" in lines
    assert "[Epoch 0] Begin, current learning rate: 0.0200" in lines
    assert f"val_accuracy: {history['val_accuracy'][1]:.4f}" in lines
    assert re.search(r"Train finished using total \d+s with 2 epochs", lines)
    assert ("[Epoch 1][Batch 2]" in lines) == (interval == 2)
    assert "\nepoch 1/2" not in lines  # it has taken the place of ours
    figures = estimator.evaluate(batches, event_handlers=theirs.LoggingHandler(metrics=estimator.val_metrics))
    assert "Validation Begin" in log()
    assert f"val_loss: {figures['loss']:.4f}" in log()[-1]


@BOTH
def test_checkpoint(trainers: Any, batches: Any, tmp_path: Path) -> None:
    estimator = make(trainers)
    often, seldom = tmp_path / "often", tmp_path / "seldom"
    handlers = [
        theirs.CheckpointHandler(str(often), "often", epoch_period=None, batch_period=2),
        theirs.CheckpointHandler(str(seldom), max_checkpoints=2),
    ]
    estimator.fit(batches, epochs=3, event_handlers=handlers)
    stems = {"model-epoch1batch6", "model-epoch2batch9"}
    files = {f"{stem}.{end}" for stem in stems for end in ("params", "states")}
    assert {path.name for path in seldom.iterdir()} == files
    assert len({path.stem for path in often.iterdir()}) == 4 and len(list(often.iterdir())) == 8
    resumed = make(trainers)
    handler = theirs.CheckpointHandler(str(seldom), resume_from_checkpoint=True)
    assert resumed.fit(batches, epochs=5, event_handlers=handler).epochs == 2  # three were done before
    estimator.fit(batches, epochs=2)
    for value, expected in zip(snapshot(resumed.net).values(), snapshot(estimator.net).values()):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("which", ["val_metrics", "train_metrics", "own"])
def test_checkpoint_of_the_best(batches: Any, tmp_path: Path, which: str) -> None:
    own = mx.metric.Accuracy()
    estimator = make(metrics={"accuracy": MetricSpec(own, "digit", "digit")})
    monitor = own if which == "own" else getattr(estimator, which)[0]
    handler = theirs.CheckpointHandler(str(tmp_path), monitor=monitor, save_best=True, mode="max")
    history = estimator.fit(batches, batches, epochs=4, event_handlers=handler)
    figure = "val_accuracy" if which == "val_metrics" else "train_accuracy"
    assert handler.best == max(history[figure])
    assert {"model-best.params", "model-best.states"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("which", ["val_metrics", "train_metrics"])
def test_early_stopping(batches: Any, which: str) -> None:
    estimator = make()
    monitor = getattr(estimator, which)[-1]
    handler = theirs.EarlyStoppingHandler(monitor, mode="min", patience=1)
    losses = estimator.fit(batches, batches, epochs=6, event_handlers=handler)[monitor.get()[0]]
    falling = all(after < before for before, after in zip(losses, losses[1:]))
    assert falling == (len(losses) == 6)
    assert handler.best == min(losses)
    handler = theirs.EarlyStoppingHandler(monitor, mode="min", baseline=-1.0, patience=2)
    assert estimator.fit(batches, batches, epochs=9, event_handlers=handler).epochs == 2
    assert estimator.state.stop_reason == "EarlyStoppingHandler"


class Odd(mx.metric.MSE):
    """A metric of which the estimator does not know which direction is better; the handler does."""


@pytest.mark.parametrize("metric", ["odd", "loss"])
def test_a_validation_metric_can_be_monitored_only_with_validation_data(
    batches: Any, metric: str, tmp_path: Path
) -> None:
    def handlers(monitor: Any) -> list[Any]:
        path = str(tmp_path)
        checkpoints = theirs.CheckpointHandler(path, monitor=monitor, mode="min", save_best=True)
        return [theirs.EarlyStoppingHandler(monitor, mode="min", patience=9), checkpoints]

    estimator = make(metrics={"odd": MetricSpec(Odd(), "size", "size")})
    number = ["odd", "loss"].index(metric)
    for handler in handlers(estimator.val_metrics[number]):
        match = f'Handler: there is no figure "val_{metric}".*; val_ figures need validation data'
        with pytest.raises(ValueError, match=match):
            estimator.fit(batches, epochs=1, event_handlers=handler)
        assert estimator.state.step == 0
    both = [*handlers(estimator.val_metrics[number]), *handlers(estimator.train_metrics[number])]
    for handler in both:
        assert estimator.fit(batches, batches, epochs=1, event_handlers=handler).epochs == 1
    assert estimator.fit(batches, epochs=1, event_handlers=both[-1]).epochs == 1


EVENTS = ("train_begin", "epoch_begin", "batch_begin", "batch_end", "epoch_end", "train_end")


class Everything(
    theirs.TrainBegin, theirs.EpochBegin, theirs.BatchBegin, theirs.BatchEnd, theirs.EpochEnd, theirs.TrainEnd
):
    """Uses all that Gluon's Estimator offers its handlers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        for event in EVENTS:
            setattr(self, event, self._called_at(event))

    def _called_at(self, event: str) -> Any:
        def method(estimator: Any, *args: Any, **kwargs: Any) -> bool:
            assert estimator.trainer.learning_rate > 0 and estimator.context == TWO
            assert (estimator.max_epoch, estimator.max_batch, estimator.batch_axis) == (1, None, 0)
            self.calls.append((event, kwargs))
            return False

        return method


def shapes(facts: Any) -> Any:
    return {n: shapes(a) for n, a in facts.items()} if isinstance(facts, dict) else [a.shape for a in facts]


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_custom_handler(outputs: int, batches: Any) -> None:
    handler = Everything()
    net, spec = (mx.gluon.nn.Dense(3), CE) if outputs == 1 else (two_heads(), two_head_spec())
    data = [batch[: outputs + 1] for batch in batches[:2]]
    MultiEstimator(net, spec, context=TWO).fit(data, epochs=1, event_handlers=handler)
    assert [event for event, _ in handler.calls] == [*EVENTS[:4], *EVENTS[2:]]
    assert list(handler.calls[2][1]) == ["batch"]
    facts = handler.calls[-3][1]
    assert facts["batch"] is data[1]
    digit, size = ([(4, 3)] * 2, [(4,)] * 2, [(4,)] * 2), ([(4, 1)] * 2, [(4, 1)] * 2, [(4,)] * 2)
    expected = digit if outputs == 1 else [{"digit": d, "size": s} for d, s in zip(digit, size)]
    assert [shapes(facts[name]) for name in ("pred", "label", "loss")] == list(expected)
    label = facts["label"] if outputs == 1 else facts["label"]["digit"]
    np.testing.assert_array_equal(np.concatenate([part.asnumpy() for part in label]), data[1][1])


def test_metrics_can_be_read_within_an_epoch(batches: Any, arrays: Any) -> None:
    estimator = make()
    assert [metric.get()[0] for metric in estimator.train_metrics] == ["train_accuracy", "train_loss"]
    assert [metric.get()[0] for metric in estimator.val_metrics] == ["val_accuracy", "val_loss"]
    for metrics in (estimator.train_metrics, estimator.val_metrics):
        assert isinstance(metrics[0], mx.metric.Accuracy) and isinstance(metrics[1], mx.metric.Loss)
    assert all(math.isnan(metric.get()[1]) for metric in estimator.train_metrics)
    held = estimator.train_metrics
    seen = []

    right: list[bool] = []

    class Middle(theirs.BatchEnd):
        def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
            (pred,), (label,) = kwargs["pred"]["digit"], kwargs["label"]["digit"]
            right.extend(pred.asnumpy().argmax(axis=1) == label.asnumpy())
            seen.append((held[0].get()[1], np.mean(right)))

    history = estimator.fit(batches, batches, epochs=1, event_handlers=Middle())
    assert len(seen) == 3 and all(value == pytest.approx(expected) for value, expected in seen)
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
    spec = TaskSpec(
        outputs="out",
        labels="y",
        losses={"l": LossSpec(CE, "out", "y")},
        metrics={"own": MetricSpec(own, "out", "y")},
    )
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
        def batch_end(self, estimator: Any, pred: Any, label: Any) -> None:
            other.update(label["size"], pred["size"])

    updates = Updates()
    updates.held = [other]  # of the instance, as Gluon's MetricHandler has it
    handlers = [updates, theirs.LoggingHandler(metrics=[other, part])]
    assert estimator.fit(batches, epochs=1, event_handlers=handlers).epochs == 1


def test_what_else_gluons_estimator_offers(batches: Any) -> None:
    several = make(evaluate=two_head_spec(losses={"size": L2}))
    assert several.loss == {"digit": CE, "size": L2}
    assert several.val_loss is L2 and several.val_net is several.net
    estimator = MultiEstimator(mx.gluon.nn.Dense(3), CE)
    assert estimator.loss is estimator.val_loss is CE
    batch = batches[0][:2]
    for run in (estimator.batch_processor.fit_batch, estimator.batch_processor.evaluate_batch):
        arrays = run(estimator, batch, 0)
        assert [shapes(each) for each in arrays] == [[(8, 6)], [(8,)], [(8, 3)], [(8,)]]
    data, *_ = several.batch_processor.evaluate_batch(several, batches[0])
    assert shapes(data) == [(8, 6)]


def test_metrics_of_several_figures(batches: Any) -> None:
    both = mx.metric.CompositeEvalMetric([mx.metric.MSE(), mx.metric.MAE()])
    estimator = make(metrics={"spread": MetricSpec(both, "size", "size", mode="min")}, unused=["digit"])
    history = estimator.fit(batches, epochs=1)
    names, values = estimator.train_metrics[0].get()
    assert names == ["train_spread.mse", "train_spread.mae"]
    assert values == [history[name][0] for name in names]
