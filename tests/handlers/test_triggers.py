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
    """Writes down at which epoch or step it is called."""

    priority = 7
    monitor = "val_loss"
    mode = "min"

    def __init__(self) -> None:
        self.calls: dict[str, list[int]] = {}

    def note(self, event: str, where: int) -> None:
        self.calls.setdefault(event, []).append(where)

    def train_begin(self, estimator: Any) -> None:
        self.note("train_begin", 0)

    def epoch_begin(self, estimator: Any, **arguments: Any) -> None:
        self.note("epoch_begin", estimator.state.epoch)

    def batch_begin(self, estimator: Any, **arguments: Any) -> None:
        self.note("batch_begin", estimator.state.step)

    def batch_end(self, estimator: Any, *, batch: Any) -> str:
        self.note("batch_end", estimator.state.step)
        return batch

    def epoch_end(self, estimator: Any, **arguments: Any) -> bool:
        self.note("epoch_end", estimator.state.epoch)
        return True


def run(handler: Any, fits: list[int], batches: int) -> None:
    """Call the handler as the loop does, in fits of these numbers of epochs."""
    state = RunState()
    estimator = SimpleNamespace(state=state)
    for epochs in fits:
        handler.train_begin(estimator)
        for _ in range(epochs):
            handler.epoch_begin(estimator)
            for _ in range(batches):
                handler.batch_begin(estimator, batch="b")
                state.step += 1
                handler.batch_end(estimator, batch="b")
            handler.epoch_end(estimator)
            state.epoch += 1


@pytest.mark.parametrize(
    ("n", "skip", "expected"), [(3, 0, [3, 6, 9]), (1, 4, [5, 6, 7, 8, 9]), (2, 3, [5, 7, 9]), (20, 0, [])]
)
def test_fires(n: int, skip: int, expected: list[int]) -> None:
    trigger = Every(n, skip=skip)
    assert [count for count in range(1, 10) if trigger.fires(count)] == expected


ALL = list(range(8))
# The fits, batches of an epoch, and what is called: other events are passed on.
GATED: dict[str, tuple[Any, list[int], int, dict[str, list[int]]]] = {
    "epochs": (
        lambda recorder: Every(2, "epoch", recorder), [4], 2,
        {"train_begin": [0], "epoch_begin": [1, 3], "epoch_end": [1, 3], "batch_begin": ALL,
         "batch_end": [step + 1 for step in ALL]},
    ),
    "batches across epochs": (  # before the 4th and 7th batch was trained
        lambda recorder: Every(3, "batch", recorder, skip=1), [2], 4,
        {"train_begin": [0], "epoch_begin": [0, 1], "epoch_end": [0, 1], "batch_begin": [3, 6],
         "batch_end": [4, 7]},
    ),
    "a second fit": (
        lambda recorder: Every(5, "epoch", recorder), [3, 3], 1,
        {"train_begin": [0, 0], "epoch_begin": [4], "epoch_end": [4], "batch_begin": ALL[:6],
         "batch_end": [step + 1 for step in ALL[:6]]},
    ),
    "nested": (
        lambda recorder: Every(2, "epoch", Every(3, "batch", recorder)), [2], 3,
        {"train_begin": [0], "epoch_begin": [1], "epoch_end": [1], "batch_begin": [2, 5],
         "batch_end": [3, 6]},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("wrap", "fits", "batches", "calls"), GATED.values(), ids=GATED)
def test_a_handler_is_called_when_it_is_due(wrap: Any, fits: Any, batches: int, calls: Any) -> None:
    recorder = Recorder()
    run(wrap(recorder), fits, batches)
    assert recorder.calls == calls


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


@pytest.mark.parametrize(
    "duplicate",
    [lambda each: each, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))],
    ids=["itself", "copy", "pickle"],
)
def test_attributes_are_the_handlers_also_of_a_copy(duplicate: Any) -> None:
    gated = duplicate(Every(2, "batch", Recorder(), skip=3))
    assert (gated.priority, gated.monitor, gated.mode) == (7, "val_loss", "min")
    with pytest.raises(AttributeError, match="evaluate_end"):
        _ = gated.evaluate_end
    assert repr(gated) == 'Every(2, "batch", Recorder, skip=3)' and repr(Every(5)) == 'Every(5, "epoch")'
