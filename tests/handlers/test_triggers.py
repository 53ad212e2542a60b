"""multifit.handlers.triggers: Every, alone and around a handler."""

import copy
import pickle
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from multifit.handlers.handler import HOOKS, implements
from multifit.handlers.state import RunState
from multifit.handlers.triggers import Every


class Recorder:
    """Writes down what it is called for."""

    priority = 7
    monitor = "val_loss"
    mode = "min"

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def train_begin(self, estimator: Any) -> None:
        self.calls.append(("train_begin", 0))

    def epoch_begin(self, estimator: Any, **arguments: Any) -> None:
        self.calls.append(("epoch_begin", estimator.state.epoch))

    def batch_begin(self, estimator: Any, **arguments: Any) -> None:
        self.calls.append(("batch_begin", estimator.state.step))

    def batch_end(self, estimator: Any, *, batch: Any) -> str:
        self.calls.append(("batch_end", estimator.state.step))
        return batch

    def epoch_end(self, estimator: Any, **arguments: Any) -> bool:
        self.calls.append(("epoch_end", estimator.state.epoch))
        return True


def run(handler: Any, epochs: int, batches: int, state: RunState | None = None) -> RunState:
    """Call the handler as the loop does."""
    state = state or RunState()
    estimator = SimpleNamespace(state=state)
    handler.train_begin(estimator)
    for _ in range(epochs):
        handler.epoch_begin(estimator)
        for _ in range(batches):
            handler.batch_begin(estimator, batch="b")
            state.step += 1
            handler.batch_end(estimator, batch="b")
        handler.epoch_end(estimator)
        state.epoch += 1
    return state


def called(recorder: Recorder, event: str) -> list[int]:
    return [where for name, where in recorder.calls if name == event]


@pytest.mark.parametrize(
    ("n", "skip", "expected"), [(3, 0, [3, 6, 9]), (1, 4, [5, 6, 7, 8, 9]), (2, 3, [5, 7, 9]), (20, 0, [])]
)
def test_fires(n: int, skip: int, expected: list[int]) -> None:
    trigger = Every(n, skip=skip)
    assert [count for count in range(1, 10) if trigger.fires(count)] == expected


def test_epochs_are_filtered_and_other_events_passed_on() -> None:
    recorder = Recorder()
    run(Every(2, "epoch", recorder), epochs=4, batches=2)
    assert called(recorder, "epoch_begin") == called(recorder, "epoch_end") == [1, 3]
    assert called(recorder, "batch_end") == [1, 2, 3, 4, 5, 6, 7, 8]
    assert called(recorder, "train_begin") == [0]


def test_batches_are_filtered_across_epochs() -> None:
    recorder = Recorder()
    run(Every(3, "batch", recorder, skip=1), epochs=2, batches=4)
    assert called(recorder, "batch_begin") == [3, 6]  # before the 4th and 7th batch was trained
    assert called(recorder, "batch_end") == [4, 7]
    assert called(recorder, "epoch_end") == [0, 1]


def test_counting_continues_in_a_second_fit() -> None:
    recorder = Recorder()
    state = run(Every(5, "epoch", recorder), epochs=3, batches=1)
    assert called(recorder, "epoch_end") == []
    run(Every(5, "epoch", recorder), epochs=3, batches=1, state=state)
    assert called(recorder, "epoch_end") == [4]


@pytest.mark.parametrize("unit", ["epoch", "batch"])
@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_of_a_step_belong_to_its_batch(hook: str, unit: str) -> None:
    called = []

    def method(estimator: Any) -> Any:
        called.append(estimator.state.step)
        return nullcontext()

    handler = SimpleNamespace(**{hook: method}, batch_begin=print, epoch_begin=print)
    for step in range(4):
        answer = getattr(Every(2, unit, handler), hook)(SimpleNamespace(state=RunState(step=step)))
        with answer if hook.startswith("around") else nullcontext():
            pass
    is_gated = unit == "batch" and hook not in ("around_fit", "around_evaluation")
    assert called == ([1, 3] if is_gated else [0, 1, 2, 3])


@pytest.mark.parametrize("name", ["change_batch", "batch_end"])
def test_a_method_that_a_subclass_leaves_out_stays_out(name: str) -> None:
    handler = SimpleNamespace(batch_begin=print, **{name: None})
    assert not implements(Every(2, "batch", handler), name)


def test_attributes_are_the_handlers() -> None:
    gated = Every(2, "epoch", Recorder())
    assert (gated.priority, gated.monitor, gated.mode) == (7, "val_loss", "min")
    with pytest.raises(AttributeError, match="evaluate_end"):
        _ = gated.evaluate_end
    assert repr(Every(2, "batch", Recorder(), skip=3)) == 'Every(2, "batch", Recorder, skip=3)'
    assert repr(Every(5)) == 'Every(5, "epoch")'


def test_every_can_be_nested() -> None:
    recorder = Recorder()
    run(Every(2, "epoch", Every(3, "batch", recorder)), epochs=2, batches=3)
    assert called(recorder, "epoch_end") == [1]
    assert called(recorder, "batch_end") == [3, 6]


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))], ids=["copy", "pickle"]
)
def test_it_can_be_copied(duplicate: Any) -> None:
    twin = duplicate(Every(2, "epoch", Recorder()))
    assert isinstance(twin, Every) and (twin.n, twin.monitor) == (2, "val_loss")
