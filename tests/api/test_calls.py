"""An estimator does one thing at a time: calls from other threads, and evaluations within evaluations."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from multifit import MultiEstimator
from tests.common.nets import two_heads
from tests.common.specs import two_head_spec

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "fit": lambda estimator, batches: estimator.fit(batches, epochs=1),
    "evaluate": lambda estimator, batches: estimator.evaluate(batches, event_handlers=[]),
    "predict": lambda estimator, batches: estimator.predict(batches),
}


@pytest.fixture
def estimator() -> MultiEstimator:
    return MultiEstimator(two_heads("hybridized"), two_head_spec())


def in_another_thread(call: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(1) as threads:
        threads.submit(call).result(60)


@pytest.mark.parametrize("call", CALLS)
def test_during_a_fit_another_thread_is_refused(estimator: MultiEstimator, batches: Any, call: str) -> None:
    refused: list[str] = []

    def from_outside() -> None:
        with pytest.raises(RuntimeError, match=f"^{call} was called while fit runs in another thread"):
            CALLS[call](estimator, batches)
        refused.append(call)

    handler = SimpleNamespace(batch_end=lambda estimator: in_another_thread(from_outside))
    estimator.fit(batches, epochs=1, event_handlers=handler)
    assert len(refused) == estimator.state.step == len(batches)
    in_another_thread(lambda: CALLS[call](estimator, batches))  # it has ended


def test_predictions_of_several_threads_wait_for_each_other(estimator: MultiEstimator, batches: Any) -> None:
    running: list[int] = []

    class Loader(list):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            running.append(1)
            for batch in super().__iter__():
                time.sleep(0)  # another thread may go on
                yield batch
            assert running == [1]
            running.clear()

    expected = estimator.predict(batches)
    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(estimator.predict, Loader(batches)) for _ in range(12)]
    for call in calls:
        for name, array in call.result().items():
            np.testing.assert_array_equal(array, expected[name])
