"""An estimator does one thing at a time: calls from other threads, and evaluations without end."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Callable

import numpy as np
import pytest

from multifit import MultiEstimator
from multifit.estimator.calls import Calls
from tests.common.nets import two_heads
from tests.common.specs import two_head_spec


def export(estimator: MultiEstimator) -> None:
    with TemporaryDirectory() as folder:
        assert estimator.export(folder)


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "fit": lambda estimator, batches: estimator.fit(batches, epochs=1),
    "fit_batch": lambda estimator, batches: estimator.fit_batch(batches[0]),
    "check": lambda estimator, batches: estimator.check(batches),
    "evaluate": lambda estimator, batches: estimator.evaluate(batches, event_handlers=[]),
    "evaluate_batch": lambda estimator, batches: estimator.evaluate_batch(batches[0]),
    "predict": lambda estimator, batches: estimator.predict(batches),
    "export": lambda estimator, batches: export(estimator),
    "find_learning_rate": lambda estimator, batches: estimator.find_learning_rate(batches, batches=10),
    "profile": lambda estimator, batches: estimator.profile(batches, batches=1),
}
WHILE = 'was called in thread "other_0" while {} runs in thread "MainThread": an estimator does one thing'


@pytest.fixture
def estimator() -> MultiEstimator:
    return MultiEstimator(two_heads("hybridized"), two_head_spec())


def in_another_thread(call: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(1, "other") as threads:
        threads.submit(call).result(60)


@pytest.mark.parametrize("call", CALLS)
def test_during_a_fit_another_thread_is_refused(estimator: MultiEstimator, batches: Any, call: str) -> None:
    messages: list[str] = []

    def from_outside() -> None:
        with pytest.raises(RuntimeError, match=f"^{call} {WHILE.format('fit')}") as caught:
            CALLS[call](estimator, batches)
        messages.append(str(caught.value))

    handler = SimpleNamespace(batch_end=lambda estimator: in_another_thread(from_outside))
    history = estimator.fit(batches, epochs=1, event_handlers=handler)
    assert len(messages) == len(batches) and np.isfinite(history["train_loss"]).all()
    assert "wait until fit has ended, or use another estimator with a net of its own" in messages[0]
    assert estimator.state.step == len(batches)
    in_another_thread(lambda: CALLS[call](estimator, batches))  # it has ended


@pytest.mark.parametrize("running", ["check", "evaluate", "find_learning_rate", "profile"])
def test_another_thread_is_refused_while_batches_are_read(
    estimator: MultiEstimator, batches: Any, running: str
) -> None:
    refused: list[str] = []

    class Loader(list):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            if threading.current_thread() is threading.main_thread():
                in_another_thread(self.predict)
            return super().__iter__()

        def predict(self) -> None:
            with pytest.raises(RuntimeError, match=f"^predict {WHILE.format(running)}"):
                estimator.predict(batches)
            refused.append(running)

    CALLS[running](estimator, Loader(batches))
    assert refused


def test_predictions_of_several_threads_wait_for_each_other(estimator: MultiEstimator, batches: Any) -> None:
    running: list[str] = []

    class Loader(list):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            running.append(threading.current_thread().name)
            for batch in super().__iter__():
                time.sleep(0)  # another thread may go on
                yield batch
            assert running == [threading.current_thread().name]
            running.clear()

    expected = estimator.predict(batches)
    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(estimator.predict, Loader(batches)) for _ in range(12)]
    for call in calls:
        for name, array in call.result().items():
            np.testing.assert_array_equal(array, expected[name])


def test_the_fit_of_another_estimator_is_not_refused(estimator: MultiEstimator, batches: Any) -> None:
    other = MultiEstimator(two_heads(), two_head_spec())
    handler = SimpleNamespace(
        epoch_end=lambda estimator: in_another_thread(lambda: other.fit(batches, epochs=1))
    )
    estimator.fit(batches, epochs=1, event_handlers=handler)
    assert other.state.step == len(batches)


def test_a_refused_call_leaves_the_running_one() -> None:
    calls = Calls(logging.getLogger())

    def from_outside() -> None:
        with pytest.raises(RuntimeError, match="while fit runs"), calls.running("evaluate", within=True):
            raise AssertionError

    with calls.running("fit"):
        for _ in range(2):
            in_another_thread(from_outside)
            with pytest.raises(RuntimeError, match="in the middle of a run"), calls.running("check"):
                raise AssertionError
    in_another_thread(lambda: calls.check_thread("fit"))


# ---- evaluations within evaluations ------------------------------------------------------------------------


class Evaluates:
    """Evaluates at the end of every evaluation, with itself as a handler."""

    def __init__(self, batches: Any, times: int, *handlers: Any) -> None:
        self.batches, self.times, self.handlers = batches, times, handlers
        self.count = 0

    def evaluate_end(self, estimator: Any) -> None:
        if self.count < self.times:
            self.count += 1
            estimator.evaluate(self.batches, *self.handlers)


@pytest.mark.parametrize("itself", [True, False])
def test_an_evaluation_without_end_is_an_error(estimator: MultiEstimator, batches: Any, itself: bool) -> None:
    """With itself as the handler, or with those of the running fit."""
    handler = Evaluates(batches, times=100)
    handler.handlers = (handler,) if itself else ()
    with pytest.raises(RuntimeError) as caught:
        estimator.fit(batches, batches, epochs=1, event_handlers=handler)
    assert str(caught.value) == (
        "evaluate was called by an event handler, during the "
        "evaluate that an event handler had called: this would go on without end; pass "
        "event_handlers=[], which leaves this handler out"
    )
    assert handler.count == 2


def test_a_handler_may_end_it_itself(estimator: MultiEstimator, batches: Any) -> None:
    handler = Evaluates(batches, times=1)
    estimator.fit(batches, batches, epochs=1, event_handlers=handler)
    assert handler.count == 1
