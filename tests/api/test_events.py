"""Handlers in a real run: their events and arguments, how they stop it, and what happens when one fails."""

import io
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import tqdm

from multifit import MultiEstimator, ProgressBar
from multifit.handlers.handler import ARGUMENTS, EVENTS, HOOKS


class Recorder:
    """Records every event with its arguments."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        if name not in EVENTS:
            raise AttributeError(name)
        return lambda estimator, **arguments: self.events.append((name, arguments))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]


def acting(event: str, action: Any) -> Any:
    """Return a handler that calls `action` at one event."""
    return type("Acting", (), {event: lambda self, estimator, **arguments: action(estimator)})()


def interrupt(estimator: Any) -> None:
    raise KeyboardInterrupt


def fail(estimator: Any) -> None:
    raise OSError("disk full")


def test_methods_are_called_with_what_their_signatures_are_checked_against(estimator, batches):
    found: dict[str, set[str]] = {}

    def recording(event: str) -> Any:
        def method(self: Any, estimator: Any, **arguments: Any) -> Any:
            found[event] = set(arguments)
            return nullcontext() if event.startswith("around") else None

        return method

    every = type("Every_", (), {event: recording(event) for event in EVENTS + HOOKS})()
    estimator.fit(batches, batches[:1], epochs=1, event_handlers=every)
    assert found == {event: set(ARGUMENTS[event]) for event in EVENTS + HOOKS}


def test_events_are_called_in_order(estimator: MultiEstimator, batches: Any) -> None:
    recorder = Recorder()
    estimator.fit(batches, batches[:1], epochs=2, event_handlers=recorder)
    epoch = ["epoch_begin", *["batch_begin", "batch_end"] * 3]
    evaluation = ["evaluate_begin", "evaluate_batch_begin", "evaluate_batch_end", "evaluate_end"]
    # Validation runs at the end of the epoch, before handlers that read its figures there.
    assert recorder.names == ["train_begin", *[*epoch, *evaluation, "epoch_end"] * 2, "train_end"]


def test_the_facts_of_events(estimator: MultiEstimator, batches: Any) -> None:
    recorder = Recorder()
    history = estimator.fit(batches, iter(batches), epochs=1, event_handlers=recorder)
    arguments = dict(recorder.events)
    assert arguments["epoch_begin"] == {"batches": 3}
    assert arguments["evaluate_begin"] == {"batches": None}
    assert arguments["batch_begin"]["batch"] is batches[2]
    for event in ("batch_end", "evaluate_batch_end"):
        assert arguments[event]["batch"] is batches[2]
        assert sorted(arguments[event]) == ["batch", "label", "loss", "pred", "present"]
        assert arguments[event]["pred"]["digit"][0].shape == (4, 3)
        assert arguments[event]["loss"]["size"][0].shape == (4,)
    assert arguments["evaluate_end"]["figures"] == {
        name: history[f"val_{name}"][0] for name in ("loss", "digit", "size", "accuracy")
    }


def test_handlers_of_an_evaluation(estimator: MultiEstimator, batches: Any) -> None:
    """They replace those of a fit in which it is called."""
    fits, own, figures = Recorder(), Recorder(), []
    handlers = [own, acting("train_begin", fail)]  # which has no events of evaluations, and is not called
    evaluate = acting("epoch_end", lambda e: figures.append(e.evaluate(batches, event_handlers=handlers)))
    estimator.fit(batches, epochs=1, event_handlers=[fits, evaluate])
    each = ["evaluate_batch_begin", "evaluate_batch_end"] * 3
    assert own.names == ["evaluate_begin", *each, "evaluate_end"]
    assert own.events[-1][1] == {"figures": figures[0]}
    assert "evaluate_end" not in fits.names and fits.names[-1] == "train_end"


@pytest.mark.parametrize(("event", "steps"), [("batch_end", 1), ("epoch_end", 3)])
def test_a_true_return_value_stops_the_fit(estimator, batches, event, steps):
    recorder = Recorder()
    history = estimator.fit(
        batches, epochs=5, event_handlers=[acting(event, lambda estimator: True), recorder]
    )
    assert (estimator.state.step, history.epochs) == (steps, 1)
    assert estimator.state.stop_reason == "Acting"
    assert recorder.names[-2:] == ["epoch_end", "train_end"]
    assert np.isfinite(history["train_loss"]).all()


def test_a_handler_can_give_a_stop_reason(estimator: MultiEstimator, batches: Any, log: Any) -> None:
    stop = acting("batch_begin", lambda estimator: estimator.state.stop("the sun went down"))
    estimator.fit(batches, epochs=5, event_handlers=stop)
    assert estimator.state.step == 1
    assert log()[-1].endswith("stopped: the sun went down")
    estimator.fit(batches, epochs=1)
    assert estimator.state.stop_reason == "1 epoch"


@pytest.mark.parametrize("event", ["train_begin", "batch_end"])
def test_a_fit_ends_properly_when_interrupted(estimator, batches, event, log):
    recorder = Recorder()
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(batches, batches, epochs=5, event_handlers=[recorder, acting(event, interrupt)])
    if event != "train_begin":
        assert recorder.names[-1] == "train_end"
        assert log()[-1].endswith("stopped: KeyboardInterrupt")
    assert estimator.fit(batches, batches, epochs=1).epochs == 1  # the estimator can go on


@pytest.mark.parametrize("event", ["epoch_begin", "batch_end", "evaluate_batch_begin", "train_end"])
def test_a_failing_handler_is_named(estimator: MultiEstimator, batches: Any, event: str) -> None:
    with pytest.raises(OSError, match=f"^disk full\nraised in Acting.{event}"):
        estimator.fit(batches, batches, epochs=1, event_handlers=acting(event, fail))
    assert estimator.fit(batches, batches, epochs=1).epochs == 1


def test_the_first_error_is_the_one_that_is_raised(estimator: MultiEstimator, batches: Any, log: Any) -> None:
    estimator.net.size.register_forward_hook(lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        estimator.fit(batches, epochs=1, event_handlers=acting("train_end", fail))
    assert any("OSError: disk full" in line for line in log())


def test_bars_are_closed_after_an_interruption(estimator: MultiEstimator, batches: Any) -> None:
    stream = io.StringIO()
    handlers = [ProgressBar(stream, enabled=True), acting("evaluate_batch_end", interrupt)]
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(batches, batches, epochs=1, event_handlers=handlers)
    with pytest.raises(KeyboardInterrupt):
        estimator.evaluate(batches, event_handlers=handlers)
    del handlers
    assert "epoch 1/1" in stream.getvalue() and "evaluate" in stream.getvalue()
    assert not tqdm.tqdm._instances


def test_a_failing_evaluation_does_not_disturb_the_fit(estimator: MultiEstimator, batches: Any) -> None:
    def attempt(estimator: Any) -> None:
        with pytest.raises(ValueError, match="2 arrays"):
            estimator.evaluate([batches[0][:2]], event_handlers=[])

    recorder = Recorder()
    history = estimator.fit(batches, epochs=1, event_handlers=[acting("epoch_begin", attempt), recorder])
    assert recorder.names[-1] == "train_end"
    assert np.isfinite(history["train_loss"]).all()


def test_an_object_that_is_not_a_handler_is_an_error(estimator: MultiEstimator, batches: Any) -> None:
    for run in (partial(estimator.fit, epochs=1), estimator.evaluate):
        with pytest.raises(ValueError, match="object implements no event or hook"):
            run(batches, event_handlers=[object()])
    assert estimator.state.step == 0


def test_a_run_within_another_is_an_error(estimator: MultiEstimator, batches: Any) -> None:
    class FitsAround:
        @contextmanager
        def around_fit(self, estimator: Any) -> Iterator[None]:
            estimator.fit(batches, epochs=1)
            yield

    for handler, steps in ((acting("epoch_end", lambda e: e.check(batches)), 3), (FitsAround(), 3)):
        with pytest.raises(RuntimeError, match="called by an event handler, in the middle of a run"):
            estimator.fit(batches, epochs=1, event_handlers=handler)
        assert estimator.state.step == steps


def test_an_evaluation_within_another_is_an_error(estimator: MultiEstimator, batches: Any) -> None:
    """It would lose what the other has measured so far; at its end, that is complete."""
    expected, other = estimator.evaluate(batches), estimator.evaluate(batches[:1])
    figures: list[Any] = []

    def evaluate(estimator: Any) -> None:
        figures.append(estimator.evaluate(batches[:1], event_handlers=[]))

    for event in ("evaluate_begin", "evaluate_batch_begin", "evaluate_batch_end"):
        with pytest.raises(RuntimeError, match="called by an event handler, in the middle of an evaluation"):
            estimator.evaluate(batches, event_handlers=acting(event, evaluate))
    assert estimator.evaluate(batches, event_handlers=acting("evaluate_end", evaluate)) == expected
    assert figures == [other]


def test_predicting_within_a_run(estimator: MultiEstimator, batches: Any) -> None:
    predictions = []
    handler = acting("batch_begin", lambda e: predictions.append(e.predict(batches[0][0])["size"]))
    history = estimator.fit(batches, batches, epochs=2, event_handlers=handler)
    assert len(predictions) == 6
    assert (predictions[0] != predictions[-1]).any()
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

    handler = acting("epoch_begin", lambda estimator: order.append("epoch_begin"))
    estimator.fit(Shuffled(), epochs=2, event_handlers=handler)
    assert order == ["epoch_begin", "reset", "iter"] * 2


def test_the_counters(estimator: MultiEstimator, batches: Any) -> None:
    seen = []

    def look(estimator: Any) -> None:
        state = estimator.state
        seen.append((state.epoch, state.batch, state.step, state.samples, state.place))

    estimator.fit(batches[:1], epochs=1)
    estimator.fit(
        batches, batches, epochs=1, event_handlers=[acting("batch_begin", look), acting("batch_end", look)]
    )
    assert seen == [
        (1, 0, 1, 8, "epoch 2, batch 1"),
        (1, 0, 2, 16, "epoch 2, batch 1"),
        (1, 1, 2, 16, "epoch 2, batch 2"),
        (1, 1, 3, 24, "epoch 2, batch 2"),
        (1, 2, 3, 24, "epoch 2, batch 3"),
        (1, 2, 4, 28, "epoch 2, batch 3"),
    ]


def test_figures_can_be_read_within_an_epoch(estimator: MultiEstimator, batches: Any) -> None:
    assert estimator.figures() == estimator.figures("evaluate") == {}
    seen = []
    estimator.fit(batches, epochs=1, event_handlers=acting("batch_end", lambda e: seen.append(e.figures())))
    names = ["train_loss", "train_digit", "train_size", "train_accuracy"]
    assert [list(figures) for figures in seen] == [names] * 3
    assert seen[-1]["train_loss"] == estimator.history["train_loss"][0]
    assert seen[0] != seen[1]
