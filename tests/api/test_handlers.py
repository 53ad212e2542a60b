"""Handlers in a real run: their events and hooks, how they stop it, and what happens when one fails."""

import io
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import mxnet as mx
import numpy as np
import pytest
import tqdm
from mxnet.gluon.contrib.estimator import event_handler as theirs

from multifit import EarlyStoppingHandler, Every, MultiEstimator, ProgressBar, ValidationHandler
from multifit.handlers.handler import ARGUMENTS, EVENTS, HOOKS
from tests.common.grids import TWO
from tests.common.handlers import handler
from tests.common.nets import two_heads
from tests.common.specs import CE, two_head_spec


class Recorder:
    """Records every event and hook with its arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        if name not in EVENTS + HOOKS:
            raise AttributeError(name)

        def record(estimator: Any, **arguments: Any) -> Any:
            self.calls.append((name, arguments))
            return nullcontext() if name.startswith("around") else None

        return record

    @property
    def events(self) -> list[str]:
        return [name for name, _ in self.calls if name in EVENTS]


def fail(estimator: Any) -> None:
    raise OSError("disk full")


def interrupt(estimator: Any) -> None:
    raise KeyboardInterrupt


def test_methods_are_called_in_order_with_the_facts(estimator: MultiEstimator, batches: Any) -> None:
    recorder = Recorder()
    history = estimator.fit(batches, iter(batches), epochs=1, event_handlers=recorder)
    arguments = dict(recorder.calls)
    # the names against which signatures are checked
    assert {name: set(each) for name, each in arguments.items()} == {
        name: set(ARGUMENTS[name]) for name in EVENTS + HOOKS
    }
    evaluation = ["evaluate_begin", *["evaluate_batch_begin", "evaluate_batch_end"] * 3, "evaluate_end"]
    # Validation runs at the end of the epoch, before handlers that read its figures there.
    epoch = ["epoch_begin", *["batch_begin", "batch_end"] * 3, *evaluation, "epoch_end"]
    assert recorder.events == ["train_begin", *epoch, "train_end"]
    assert arguments["epoch_begin"] == {"batches": 3}
    assert arguments["evaluate_begin"] == {"batches": None}
    assert arguments["batch_begin"]["batch"] is batches[2]
    for event in ("batch_end", "evaluate_batch_end"):
        assert arguments[event]["batch"] is batches[2]
        assert arguments[event]["pred"]["digit"][0].shape == (4, 3)
        assert arguments[event]["loss"]["size"][0].shape == (4,)
    figures = {name: history[f"val_{name}"][0] for name in ("loss", "digit", "size", "accuracy")}
    assert arguments["evaluate_end"]["figures"] == figures


def test_handlers_of_an_evaluation(estimator: MultiEstimator, batches: Any) -> None:
    """They replace those of a fit in which it is called."""
    fits, own, figures = Recorder(), Recorder(), []
    handlers = [
        own,
        handler("Acting", train_begin=fail),
    ]  # which has no events of evaluations, and is not called
    evaluate = handler(
        "Acting", epoch_end=lambda e: figures.append(e.evaluate(batches, event_handlers=handlers))
    )
    estimator.fit(batches, epochs=1, event_handlers=[fits, evaluate])
    each = ["evaluate_batch_begin", "evaluate_batch_end"] * 3
    assert own.events == ["evaluate_begin", *each, "evaluate_end"]
    assert own.calls[-1][1] == {"figures": figures[0]}
    assert "evaluate_end" not in fits.events and fits.events[-1] == "train_end"


@pytest.mark.parametrize(
    ("event", "action", "steps", "reason"),
    [
        ("batch_end", lambda estimator: True, 1, "Acting"),
        ("epoch_end", lambda estimator: True, 3, "Acting"),
        ("batch_begin", lambda estimator: estimator.state.stop("the sun went down"), 1, "the sun went down"),
    ],
)
def test_a_handler_stops_the_fit(estimator, batches, log, event, action, steps, reason):
    recorder = Recorder()
    history = estimator.fit(
        batches, epochs=5, event_handlers=[handler("Acting", **{event: action}), recorder]
    )
    assert (estimator.state.step, history.epochs, estimator.state.stop_reason) == (steps, 1, reason)
    assert recorder.events[-2:] == ["epoch_end", "train_end"] and log()[-1].endswith(f"stopped: {reason}")
    assert np.isfinite(history["train_loss"]).all()
    estimator.fit(batches, epochs=1)
    assert estimator.state.stop_reason == "1 epoch"


@pytest.mark.parametrize("event", ["train_begin", "batch_end"])
def test_a_fit_ends_properly_when_interrupted(estimator, batches, event, log):
    stream, recorder = io.StringIO(), Recorder()
    handlers = [recorder, ProgressBar(stream, enabled=True), handler("Acting", **{event: interrupt})]
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(batches, batches, epochs=5, event_handlers=handlers)
    if event != "train_begin":
        assert recorder.events[-1] == "train_end" and "epoch 1/5" in stream.getvalue()
        assert log()[-1].endswith("stopped: KeyboardInterrupt")
    del handlers
    assert not tqdm.tqdm._instances
    assert estimator.fit(batches, batches, epochs=1).epochs == 1  # the estimator can go on


@pytest.mark.parametrize("event", ["epoch_begin", "batch_end", "evaluate_batch_begin", "train_end"])
def test_a_failing_handler_is_named(estimator: MultiEstimator, batches: Any, event: str) -> None:
    with pytest.raises(OSError, match=f"^disk full\nraised in Acting.{event}"):
        estimator.fit(batches, batches, epochs=1, event_handlers=handler("Acting", **{event: fail}))
    assert estimator.fit(batches, batches, epochs=1).epochs == 1


def test_the_first_error_is_the_one_that_is_raised(estimator: MultiEstimator, batches: Any, log: Any) -> None:
    estimator.net.size.register_forward_hook(lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        estimator.fit(batches, epochs=1, event_handlers=handler(train_end=fail))
    assert any("OSError: disk full" in line for line in log())


def test_a_failing_evaluation_does_not_disturb_the_fit(estimator: MultiEstimator, batches: Any) -> None:
    def attempt(estimator: Any) -> None:
        with pytest.raises(ValueError, match="2 arrays"):
            estimator.evaluate([batches[0][:2]], event_handlers=[])

    recorder = Recorder()
    history = estimator.fit(
        batches, epochs=1, event_handlers=[handler("Acting", epoch_begin=attempt), recorder]
    )
    assert recorder.events[-1] == "train_end"
    assert np.isfinite(history["train_loss"]).all()


@contextmanager
def fits_around(estimator: Any) -> Iterator[None]:
    estimator.fit([], epochs=1)
    yield


@pytest.mark.parametrize(
    ("method", "steps"),
    [
        ({"epoch_end": lambda estimator: estimator.check([])}, 3),
        ({"around_fit": fits_around}, 0),
        ({"batch_end": lambda estimator: estimator.load("run")}, 1),
    ],
    ids=["check", "fit", "load"],
)
def test_a_run_within_another_is_an_error(estimator, batches, method, steps):
    with pytest.raises(RuntimeError, match="called by an event handler, in the middle of a run"):
        estimator.fit(batches, epochs=1, event_handlers=handler(**method))
    assert estimator.state.step == steps


def test_an_evaluation_within_another_is_an_error(estimator: MultiEstimator, batches: Any) -> None:
    """It would lose what the other has measured so far; at its end, that is complete."""
    expected, other = estimator.evaluate(batches), estimator.evaluate(batches[:1])
    figures: list[Any] = []

    def evaluate(estimator: Any) -> None:
        figures.append(estimator.evaluate(batches[:1], event_handlers=[]))

    for event in ("evaluate_begin", "evaluate_batch_begin", "evaluate_batch_end"):
        with pytest.raises(RuntimeError, match="called by an event handler, in the middle of an evaluation"):
            estimator.evaluate(batches, event_handlers=handler("Acting", **{event: evaluate}))
    assert estimator.evaluate(batches, event_handlers=handler("Acting", evaluate_end=evaluate)) == expected
    assert figures == [other]


def test_predicting_and_reading_figures_within_a_run(estimator: MultiEstimator, batches: Any) -> None:
    assert estimator.figures() == estimator.figures("evaluate") == {}
    seen: list[Any] = []
    handlers = [
        handler("Acting", batch_begin=lambda e: seen.append(e.predict(batches[0][0])["size"])),
        handler("Acting", batch_end=lambda e: seen.append(e.figures())),
    ]
    history = estimator.fit(batches, batches, epochs=2, event_handlers=handlers)
    (first, *_, last), figures = seen[::2], seen[1::2]
    assert len(seen) == 12 and (first != last).any()
    assert [list(each) for each in figures] == [
        ["train_loss", "train_digit", "train_size", "train_accuracy"]
    ] * 6
    assert [figures[i]["train_loss"] for i in (2, 5)] == history["train_loss"] and figures[0] != figures[1]
    np.testing.assert_allclose(history["val_loss"][-1], estimator.evaluate(batches)["loss"], rtol=1e-6)


def test_the_data_is_reset_after_epoch_begin(estimator: MultiEstimator, batches: Any) -> None:
    """A handler that seeds at the epoch's begin decides the order of a DataIter that shuffles in reset()."""
    order = []

    class Shuffled:
        def __iter__(self) -> Any:
            order.append("iter")
            return iter(batches)

        def reset(self) -> None:
            order.append("reset")

    begins = handler("Acting", epoch_begin=lambda estimator: order.append("epoch_begin"))
    estimator.fit(Shuffled(), epochs=2, event_handlers=begins)
    assert order == ["epoch_begin", "reset", "iter"] * 2


def test_the_counters(estimator: MultiEstimator, batches: Any) -> None:
    seen: list[Any] = []

    def look(estimator: Any) -> None:
        state = estimator.state
        seen.append((state.epoch, state.batch, state.step, state.samples, state.place))

    estimator.fit(batches[:1], epochs=1)
    estimator.fit(batches, batches, epochs=1, event_handlers=handler(batch_begin=look, batch_end=look))
    assert seen[::2] == [(1, i, 1 + i, 8 + 8 * i, f"epoch 2, batch {i + 1}") for i in range(3)]
    assert [counts[1:4] for counts in seen[1::2]] == [(0, 2, 16), (1, 3, 24), (2, 4, 28)]


# ---- validation within a fit -------------------------------------------------------------------------------


def test_validation_data_that_a_handler_replaces_is_told(estimator, batches, caplog):
    estimator.fit(batches, batches, epochs=1, event_handlers=ValidationHandler(batches, batch_period=2))
    assert "val_data= is not evaluated" not in caplog.text
    handlers = [EarlyStoppingHandler("val_loss"), Every(1, "epoch", ValidationHandler(batches))]
    history = estimator.fit(batches, batches[:1], epochs=1, event_handlers=handlers)
    assert "val_data= is not evaluated: the ValidationHandler that was given evaluates its own" in caplog.text
    assert history["val_loss"] == [estimator.evaluate(batches, event_handlers=[])["loss"]]


@pytest.mark.parametrize("event", ["train_begin", "batch_end"])
def test_a_handler_may_evaluate(estimator: MultiEstimator, batches: Any, event: str) -> None:
    """Before the first epoch, the history has no row for its figures."""
    evaluations: list[Any] = []

    def evaluate(estimator: Any) -> None:
        evaluations.append(estimator.evaluate(batches, event_handlers=[])["loss"])

    history = estimator.fit(batches, epochs=1, event_handlers=handler(**{event: evaluate}))
    assert evaluations and "train_loss" in history
    assert history.get("val_loss") == (None if event == "train_begin" else [evaluations[-1]])


def test_monitors_are_checked_within_every(estimator: MultiEstimator, batches: Any) -> None:
    with pytest.raises(ValueError, match='no figure "loss"'):
        estimator.fit(batches, epochs=1, event_handlers=Every(5, "epoch", EarlyStoppingHandler("loss")))


# ---- Gluon's handlers --------------------------------------------------------------------------------------


GLUONS = ("train_begin", "epoch_begin", "batch_begin", "batch_end", "epoch_end", "train_end")


def everything(calls: list[tuple[str, dict[str, Any]]]) -> Any:
    """Return a handler of Gluon's with a method for each of its events."""

    def called_at(event: str) -> Any:
        def method(self: Any, estimator: Any, *args: Any, **kwargs: Any) -> bool:
            assert (estimator.max_epoch, estimator.max_batch, estimator.context) == (1, None, TWO)
            calls.append((event, kwargs))
            return False

        return method

    bases = tuple(getattr(theirs, event.title().replace("_", "")) for event in GLUONS)
    return type("Everything", bases, {event: called_at(event) for event in GLUONS})()


def shapes(facts: Any) -> Any:
    return {n: shapes(a) for n, a in facts.items()} if isinstance(facts, dict) else [a.shape for a in facts]


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_handler_is_called_with_gluons_arguments(outputs: int, batches: Any) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []
    net, spec = (mx.gluon.nn.Dense(3), CE) if outputs == 1 else (two_heads(), two_head_spec())
    data = [batch[: outputs + 1] for batch in batches[:2]]
    MultiEstimator(net, spec, context=TWO).fit(data, epochs=1, event_handlers=everything(calls))
    assert [event for event, _ in calls] == [*GLUONS[:4], *GLUONS[2:]]
    assert list(calls[2][1]) == ["batch"]
    facts = calls[-3][1]
    assert facts["batch"] is data[1]
    digit, size = ([(4, 3)] * 2, [(4,)] * 2, [(4,)] * 2), ([(4, 1)] * 2, [(4, 1)] * 2, [(4,)] * 2)
    expected = digit if outputs == 1 else [{"digit": d, "size": s} for d, s in zip(digit, size)]
    assert [shapes(facts[name]) for name in ("pred", "label", "loss")] == list(expected)
    label = facts["label"] if outputs == 1 else facts["label"]["digit"]
    np.testing.assert_array_equal(np.concatenate([part.asnumpy() for part in label]), data[1][1])


def test_stopping(batches: Any) -> None:
    stops = theirs.StoppingHandler()
    estimator = MultiEstimator(two_heads(), two_head_spec())
    assert estimator.fit(batches, epochs=2, event_handlers=stops).epochs == 2
    assert (stops.max_epoch, stops.current_batch) == (2, 6)

    class Sooner(theirs.StoppingHandler):
        def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
            super().train_begin(estimator)
            self.max_batch = 4

    estimator.fit(batches, epochs=5, event_handlers=Sooner())
    assert (estimator.state.step, estimator.state.stop_reason) == (10, "Sooner")


def test_a_metric_of_the_handlers_own(batches: Any) -> None:
    """Gluon's handler updates it, and another one stops when it no longer improves."""
    accuracy = mx.metric.Accuracy()
    stopping = theirs.EarlyStoppingHandler(accuracy, mode="min", baseline=-1.0, patience=2)
    handlers = [theirs.MetricHandler([accuracy]), stopping]
    estimator = MultiEstimator(mx.gluon.nn.Dense(3), CE, context=TWO)
    history = estimator.fit([batch[:2] for batch in batches], epochs=9, event_handlers=handlers)
    assert (history.epochs, estimator.state.stop_reason) == (2, "EarlyStoppingHandler")
    assert accuracy.get()[1] == history["train_accuracy"][-1]
