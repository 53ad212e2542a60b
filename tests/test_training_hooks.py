"""TrainingHooks: what handlers change in a step, and what they may return."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Iterator

import pytest

from multifit.events import (
    EventDispatcher,
    HandlerError,
    TrainingHooks,
)
from multifit.state import RunState
from tests.common.handlers import handler, nothing


def hooks(*handlers: Any) -> TrainingHooks:
    return TrainingHooks(EventDispatcher(SimpleNamespace(state=RunState()), handlers))


def test_hooks_are_active_if_a_handler_implements_them() -> None:
    holds = hooks(handler(hold_update=nothing))
    assert holds.active() and holds.active("hold_update", "change_batch") and not holds.active("change_batch")
    assert not hooks(handler(around_fit=nothing)).active()


def test_each_hook_sees_what_the_handler_before_returned() -> None:
    first = handler("First", -1, change_batch=lambda est, slots: {"x": slots["x"] + 1})
    second = handler(change_batch=lambda est, slots: {"y": slots["x"] * 10})
    ignoring = handler(change_batch=nothing)
    assert hooks(second, ignoring, first).change_batch({"x": 1, "y": 2}) == {"x": 2, "y": 20}
    doubles = handler(change_outputs=lambda est, outputs, slots: {"o": outputs["o"] * slots["x"]})
    assert hooks(doubles).change_outputs({"o": 3}, {"x": 2}) == {"o": 6}
    adds = handler(change_objective=lambda est, objectives, loss: (*objectives, loss))
    assert hooks(adds, handler(change_objective=nothing)).change_objective([1], loss=2) == [1, 2]


def test_all_handlers_are_asked_whether_to_hold_the_update() -> None:
    calls: list[str] = []
    holds = handler(hold_update=lambda est, loss: calls.append(loss) or 1)
    assert hooks(holds, handler(hold_update=lambda est, loss: calls.append(loss))).hold_update(loss="L")
    assert calls == ["L", "L"]


@pytest.mark.parametrize(
    ("returned", "message"),
    [("x", "Wrong.{} returned str; return a dict"), ({"xa": 1}, 'Wrong.{} returned "xa" .did you mean "x"')],
)
def test_hooks_must_return_known_names(returned: Any, message: str) -> None:
    wrong = hooks(handler("Wrong", change_batch=lambda est: returned, change_outputs=lambda est: returned))
    with pytest.raises(HandlerError, match=message.format("change_batch")):
        wrong.change_batch({"x": 1})
    with pytest.raises(HandlerError, match=message.format("change_outputs")):
        wrong.change_outputs({"x": 1}, {})


def test_context_managers_that_cannot_be_entered_are_named() -> None:
    calls: list[str] = []

    @contextmanager
    def wrap(est: Any) -> Iterator[None]:
        calls.append("in")
        try:
            yield
        finally:
            calls.append("out")

    @contextmanager
    def broken(est: Any) -> Iterator[None]:
        raise KeyError("lost")
        yield

    handlers = [handler(around_step=wrap), handler("Broken", around_step=broken)]
    message = "Broken failed in around_step .epoch 1, batch 1.: KeyError"
    with pytest.raises(HandlerError, match=message), hooks(*handlers).around("step"):
        pytest.fail("entered")
    assert calls == ["in", "out"]
