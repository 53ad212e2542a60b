"""TrainingHooks: what handlers change in a step, and what they may return."""

from __future__ import annotations

import re
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Iterator

import numpy as np
import pytest

from multifit.errors import HandlerError
from multifit.events import (
    EventDispatcher,
    TrainingHooks,
)
from multifit.state import RunState
from tests.common.handlers import handler, nothing


def hooks(*handlers: Any) -> TrainingHooks:
    return TrainingHooks(EventDispatcher(SimpleNamespace(state=RunState()), handlers))


def test_hooks_are_active_if_a_handler_implements_them() -> None:
    holds = hooks(handler(hold_update=nothing))
    assert holds.active("hold_update", "change_batch") and not holds.active("change_batch")


def test_each_hook_sees_what_the_handler_before_returned() -> None:
    first = handler("First", -1, change_batch=lambda est, slots: {"x": slots["x"] + 1})
    second = handler(change_batch=lambda est, slots: {"y": slots["x"] * 10})
    ignoring = handler(change_batch=nothing)
    one = np.ones(1)
    assert hooks(second, ignoring, first).change_batch({"x": one, "y": one * 2}) == {"x": 2, "y": 20}
    doubles = handler(change_outputs=lambda est, outputs, slots: {"o": outputs["o"] * slots["x"]})
    assert hooks(doubles).change_outputs({"o": 3}, {"x": 2}) == {"o": 6}
    adds = handler(change_objective=lambda est, objectives, loss: (*objectives, loss))
    assert hooks(adds, handler(change_objective=nothing)).change_objective([1], loss=2) == [1, 2]


def test_all_handlers_are_asked_whether_to_hold_the_update() -> None:
    calls: list[str] = []
    holds = handler(hold_update=lambda est, loss: calls.append(loss) or 1)
    assert hooks(holds, handler(hold_update=lambda est, loss: calls.append(loss))).hold_update(loss="L")
    assert calls == ["L", "L"]


def test_an_answer_that_is_neither_true_nor_false_is_named() -> None:
    class Values:
        def __bool__(self) -> bool:
            raise ValueError("The truth value of several elements is ambiguous")

    holds = handler("Holds", hold_update=lambda est: Values())
    with pytest.raises(ValueError, match=r"raised in Holds.hold_update \(epoch 1, batch 1\)$"):
        hooks(holds).hold_update()


def raising() -> Iterator[float]:
    raise KeyError("lost")
    yield 0.0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            lambda given: [*given, 0.01],
            "Adds.change_objective returned 0.01 among the objectives; return",
        ),
        (lambda given: [None], "Adds.change_objective returned None among the objectives; return a list of"),
        (lambda given: {"loss": given[0]}, "Adds.change_objective returned 'loss' among the objectives"),
        (lambda given: [], "Adds.change_objective returned no objectives, so that nothing would be trained"),
        (
            lambda given: [*given, np.ones(8)],
            "Adds.change_objective returned .8,. float64 among the objectives; return a list of arrays of",
        ),
    ],
)
def test_objectives_must_be_arrays(changed: Any, message: str) -> None:
    adds = handler("Adds", change_objective=lambda est, objectives: changed(objectives))
    after = handler(change_objective=lambda est, objectives: pytest.fail("the next one is called"))
    with pytest.raises(HandlerError, match=message):
        hooks(adds, after).change_objective([np.ones(1)])


@pytest.mark.parametrize(
    ("changed", "error"), [(lambda given: 3, TypeError), (lambda given: raising(), KeyError)]
)
def test_objectives_that_cannot_be_read_are_pythons_error(changed: Any, error: type[Exception]) -> None:
    adds = handler("Adds", change_objective=lambda est, objectives: changed(objectives))
    with pytest.raises(error, match=r"raised in Adds.change_objective \(epoch 1, batch 1\)$"):
        hooks(adds).change_objective([np.ones(1)])


def test_where_no_sample_is_this_processs_there_is_no_objective() -> None:
    adds = handler("Adds", change_objective=lambda est, objectives: [*objectives, 0.5])
    assert hooks(adds).change_objective([]) == [0.5]


@pytest.mark.parametrize(
    ("returned", "message"),
    [("x", "Wrong.{} returned str; return a dict"), ({"xa": 1}, 'Wrong.{} returned "xa" .did you mean "x"')],
)
def test_hooks_must_return_known_names(returned: Any, message: str) -> None:
    wrong = hooks(handler("Wrong", change_batch=lambda est: returned, change_outputs=lambda est: returned))
    with pytest.raises(HandlerError, match=message.format("change_batch")):
        wrong.change_batch({"x": np.ones(1)})
    with pytest.raises(HandlerError, match=message.format("change_outputs")):
        wrong.change_outputs({"x": 1}, {})


SLOTS = {"x": np.ones((3, 16)), "y": np.ones((2, 16, 4)), "z": None}
SAMPLES = [
    (lambda slots: {"x": np.ones((1, 16), "int32"), "z": np.ones((1, 16))}, None),
    (lambda slots: {**slots, "y": None}, None),
    (lambda slots: {"y": slots["y"][:, :5]}, '"y" as (2, 5, 4) float64'),
    (lambda slots: {name: slots[name][:, :5] for name in "xy"}, '"x" as (3, 5) float64'),
    (lambda slots: {"z": np.ones((16, 16))[:, 1:]}, '"z" as (16, 15) float64'),
    (lambda slots: {"x": np.ones(16)}, '"x" as (16,) float64'),
]


@pytest.mark.parametrize(("change", "found"), SAMPLES)
def test_a_batch_keeps_its_number_of_samples(change: Any, found: str | None) -> None:
    cuts = handler("Cuts", change_batch=lambda est, slots: change(slots))
    changes = hooks(handler(change_batch=nothing), cuts)
    if found is None:
        assert changes.change_batch(SLOTS, batch_axis=1).keys() == SLOTS.keys()
        return
    message = f"Cuts.change_batch returned {found}, but the slots hold 16 samples along axis 1"
    with pytest.raises(HandlerError, match=re.escape(message)):
        changes.change_batch(SLOTS, batch_axis=1)


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        (lambda given: given.astype("float64"), '"x" as .3, 1. float64, and the output is .3, 1. float32'),
        (lambda given: given.tolist(), '"x" as builtins.list; return ndarrays, as the handler is given'),
        (lambda given: 3, '"x" as builtins.int; return ndarrays'),
        (lambda given: None, '"x" as None, and the output is .3, 1. float32; return arrays of the same'),
    ],
)
def test_hooks_must_return_arrays_like_those_given(returned: Any, found: str) -> None:
    given = np.ones((3, 1), "float32")
    wrong = handler("Wrong", change_outputs=lambda est, outputs: {"x": returned(outputs["x"])})
    with pytest.raises(HandlerError, match=f"Wrong.change_outputs returned {found}"):
        hooks(wrong).change_outputs({"x": given}, {})
    wrong = handler("Wrong", change_batch=lambda est, slots: {"x": returned(slots["x"])})
    if isinstance(returned(given), (list, int)):  # labels may be left out, or become soft ones
        with pytest.raises(HandlerError, match=f"Wrong.change_batch returned {found}"):
            hooks(wrong).change_batch({"x": given})


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
    with (
        pytest.raises(KeyError, match=r"raised in Broken.around_step \(epoch 1, batch 1\)$"),
        hooks(*handlers).around("step"),
    ):
        pytest.fail("entered")
    assert calls == ["in", "out"]
