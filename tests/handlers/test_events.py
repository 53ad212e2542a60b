"""multifit.events: the base class, which handlers are called, when, in which order, and what they change."""

import contextlib
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mxnet.gluon.contrib.estimator import event_handler as gluon

from multifit import Handler, LoggingHandler, StoppingHandler
from multifit.handlers.dispatcher import EventDispatcher, TrainingHooks
from multifit.handlers.handler import EVENTS, HOOKS, Priority
from multifit.handlers.state import RunState
from multifit.handlers.triggers import Every
from multifit.utils.errors import DataError, HandlerError
from tests.common.handlers import handler, nothing


def emit(handlers: Any, event: str, estimator: Any = None, **arguments: Any) -> None:
    """Call the handlers of one event, in epoch 2, batch 7."""
    estimator = estimator or SimpleNamespace(state=RunState(epoch=1, batch=6))
    EventDispatcher(estimator, handlers).emit(event, **arguments)


def test_an_event_reaches_the_handlers_that_implement_it() -> None:
    estimator, calls = SimpleNamespace(state=RunState()), []
    for event in EVENTS:
        listener = handler(**{event: lambda est, **arguments: calls.append((est, arguments))})
        events = EventDispatcher(estimator, [listener])
        assert [each for each in EVENTS if events.methods(each)] == [event]
        for each in EVENTS:
            events.emit(each, fact=each)
        assert calls.pop() == (estimator, {"fact": event})
        assert not calls and not estimator.state.stopped


def test_the_base_class_has_every_method_and_none_is_called() -> None:
    """Gluon's six events are among ours."""
    names = ("TrainBegin", "TrainEnd", "EpochBegin", "EpochEnd", "BatchBegin", "BatchEnd")
    theirs = {event for name in names for event in vars(getattr(gluon, name)) if not event.startswith("_")}
    assert len(theirs) == 6 and theirs < set(EVENTS) and set(EVENTS + HOOKS) < set(vars(Handler))

    class Counts(Handler):
        count = 0

        def epoch_end(self, estimator: Any, **arguments: Any) -> None:
            super().epoch_end(estimator, **arguments)
            self.count += 1

    for made in (Counts(), Every(2, "epoch", Counts())):
        events = EventDispatcher(SimpleNamespace(state=RunState(epoch=1)), made)
        assert [each for each in (*EVENTS, *HOOKS) if events.methods(each)] == ["epoch_end"]
        events.emit("epoch_end", complete=True)
        assert made.count == 1 and not made.state_dict() and made.priority == Priority.NORMAL
    stopping = type("Stopping", (StoppingHandler,), {})()  # its methods are those of the class between
    assert EventDispatcher(SimpleNamespace(), stopping).methods("batch_end")
    with pytest.raises(ValueError, match="Handler implements no event or hook\n"):
        EventDispatcher(SimpleNamespace(), Handler())


def test_a_misspelt_method_of_a_subclass_is_an_error() -> None:
    class Misspelt(Handler):
        def epoch_begin(self, estimator: Any) -> None: ...
        def epoch_ends(self, estimator: Any) -> None: ...
        def on_train_end(self, estimator: Any) -> None: ...
        def batches_seen(self) -> None: ...

    for made in (Misspelt(), Every(2, "epoch", Misspelt())):
        with pytest.raises(ValueError) as caught:
            EventDispatcher(SimpleNamespace(), made)
        lines = str(caught.value).splitlines()
        assert lines[1:3] == [
            '  1. Misspelt has "epoch_ends", which is no event or hook (did you mean "epoch_end"?)',
            '  2. Misspelt has "on_train_end", which is no event or hook (did you mean "train_end"?)',
        ]
        assert len(lines) == 4


def test_handlers_are_none_or_one_or_several_and_called_by_priority_then_as_passed() -> None:
    one = handler(train_end=nothing)
    for given, expected in [(None, []), ((), []), (one, [one]), ([one], [one])]:
        assert EventDispatcher(SimpleNamespace(), given).handlers == expected
    calls: list[str] = []
    priorities = {
        "log": Priority.LOGGING, "a": None, "metrics": Priority.METRICS, "stop": Priority.STOPPING,
        "b": Priority.NORMAL, "validation": Priority.VALIDATION, "checkpoint": Priority.CHECKPOINT,
        "bar": Priority.PROGRESS,
    }  # fmt: skip
    handlers = [
        handler(name, priority, epoch_end=lambda est, name=name: calls.append(name))
        for name, priority in priorities.items()
    ]
    handlers[-2] = Every(2, "epoch", handlers[-2])
    emit(handlers, "epoch_end")
    assert calls == ["metrics", "validation", "a", "b", "stop", "checkpoint", "bar", "log"]


def test_a_method_is_called_with_the_facts_that_it_accepts() -> None:
    calls: list[Any] = []

    arguments = {"batch": "B", "loss": "L"}
    cases: list[tuple[Any, Any]] = [
        (handler(batch_end=lambda *args, loss: calls.append((len(args), loss))), (1, "L")),
        (handler(batch_end=lambda est: calls.append(())), ()),
        (handler(batch_end=lambda est, loss: calls.append(loss)), "L"),
        (handler(batch_end=lambda est, *args, **kwargs: calls.append(kwargs)), arguments),
        (handler(batch_end=lambda est, **_: calls.append(_)), {}),
        (Every(6, "batch", handler(batch_end=lambda est, batch=None: calls.append(batch))), "B"),
    ]
    for each, expected in cases:
        emit(each, "batch_end", SimpleNamespace(state=RunState(step=6)), **arguments)
        assert calls.pop() == expected and not calls


@pytest.mark.parametrize("own", [None, "it rains"])
@pytest.mark.parametrize("event", EVENTS)
def test_only_the_end_of_a_batch_or_an_epoch_can_stop_the_run(event: str, own: str | None) -> None:
    """The handler's own reason stays."""
    calls: list[str] = []
    estimator = SimpleNamespace(state=RunState(epoch=1, step=2, stop_reason=own))
    stopper = handler("Stopper", **{event: lambda est: 1})
    emit([stopper, handler(**{event: lambda est: calls.append(event)})], event, estimator)
    assert estimator.state.stop_reason == (
        own or ("Stopper" if event in ("batch_end", "epoch_end") else None)
    )
    assert calls == [event]  # the handlers behind it are called all the same


def _raising(error: BaseException) -> Any:
    def method(est: Any, **arguments: Any) -> None:
        raise error

    return method


@pytest.mark.parametrize(
    ("event", "error", "place"),
    [
        ("batch_begin", KeyError("x"), " (epoch 2, batch 7)"),
        ("epoch_end", KeyError("x"), " (epoch 2, batch 7)"),
        ("change_batch", KeyError("x"), " (epoch 2, batch 7)"),
        ("epoch_begin", KeyError("x"), " (epoch 2)"),
        ("train_begin", KeyError("x"), ""),
        ("around_fit", KeyError("x"), ""),
        ("evaluate_begin", KeyError("x"), ""),
        ("epoch_end", KeyboardInterrupt(), None),
        ("epoch_end", SystemExit(3), None),
        ("epoch_end", DataError("empty"), None),
        ("epoch_end", HandlerError("in a hook"), None),
    ],
)
def test_a_users_error_names_the_handler_the_event_and_where_there_is_one_the_batch(event, error, place):
    with pytest.raises(type(error)) as caught:
        emit(handler("Plot", **{event: _raising(error)}), event)
    notes = [] if place is None else [f"raised in Plot.{event}{place}"]
    assert caught.value is error and getattr(error, "__notes__", []) == notes


def test_one_error_lists_all_handlers_that_cannot_be_used() -> None:
    good = handler("Good", epoch_end=nothing)
    handlers = [
        type(good), handler("Lightning", on_epoch_end=nothing), handler("Hasty", "first", epoch_end=nothing),
        Every(5), Every(3, "batch", handler("Seldom", epoch_end=nothing)), Every(2, "epoch", LoggingHandler),
        good, Every(2, "epoch", good), good,
    ]  # fmt: skip
    with pytest.raises(ValueError) as caught:
        EventDispatcher(SimpleNamespace(), handlers)
    valid = ", ".join(f'"{event}"' for event in EVENTS + HOOKS)
    assert str(caught.value).splitlines() == [
        "event_handlers that cannot be used:",
        "  1. Good is a class; pass an instance, Good(...)",
        '  2. Lightning implements no event or hook, but has "on_epoch_end" (did you mean "epoch_end"?)',
        "  3. Hasty has the priority 'first'; valid is a number",
        "  4. Every implements no event or hook",
        '  5. Every(3, "batch", Seldom) would change nothing: Seldom has no method such as batch_begin or '
        "batch_end; use the other unit",
        "  6. LoggingHandler is a class; pass an instance, LoggingHandler(...)",
        "  7. Good is passed twice",
        "  8. Good is passed twice",
        "events and hooks are " + valid,
    ]


@pytest.mark.parametrize("handlers", ["x" * 3000, {"a": handler(epoch_end=nothing)}])
def test_other_than_handlers_is_an_error_that_is_short(handlers: Any) -> None:
    message = "event_handlers is .*; valid is a handler or a list of handlers"
    with pytest.raises(ValueError, match=message) as caught:
        EventDispatcher(SimpleNamespace(), handlers)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("event", "method", "text"),
    [
        ("train_end", lambda: None, r"Lost.train_end\(\) cannot .*; it must take the estimator alone"),
        ("epoch_end", lambda est, epoch: None, r"epoch_end\(est, epoch\) cannot be .* missing .*'epoch'"),
        ("batch_end", lambda batch, loss: None, 'take the estimator, and may take "batch", "pred", "l'),
        ("hold_update", lambda est, *, pred: None, 'hold_update.*; it must .*, and may take "loss" by name'),
        ("epoch_end", lambda *args, **facts: None, None),
        ("epoch_end", lambda est, complete, epoch=0, **_: None, None),
        ("epoch_end", max, None),  # a compiled function, without a signature
    ],
)
def test_a_method_that_cannot_be_called_is_an_error_before_training(event, method, text):
    lost = handler("Lost", **{event: method})
    for each in (lost, Every(2, "epoch", lost)) if event == "epoch_end" else (lost,):
        with contextlib.nullcontext() if text is None else pytest.raises(ValueError, match=text):
            EventDispatcher(SimpleNamespace(), each)


def test_train_end_is_called_for_all_handlers_that_have_begun() -> None:
    calls: list[str] = []

    def named(name: str, **methods: Any) -> Any:
        return handler(name, train_end=lambda est: calls.append(name), **methods)

    fails = _raising(OSError("disk full"))
    first, plain, failing = named("first", train_begin=nothing), named("plain"), handler(train_end=fails)
    for handlers, expected in [
        ([first, named("broken", train_begin=fails), named("behind", train_begin=nothing), plain],
         ["first", "broken", "plain"]),
        ([failing, first], ["first"]),
    ]:  # fmt: skip
        events = EventDispatcher(SimpleNamespace(state=RunState()), handlers)
        with pytest.raises(OSError, match="disk full"):
            events.begin()
            events.close()
        calls.clear()
        with contextlib.suppress(OSError):
            events.close()
        assert calls == expected


# ---- hooks -------------------------------------------------------------------------------------------------


def hooks(*handlers: Any) -> TrainingHooks:
    return TrainingHooks(EventDispatcher(SimpleNamespace(state=RunState()), handlers))


def test_each_hook_sees_what_the_handler_before_returned() -> None:
    first = handler("First", -1, change_batch=lambda est, slots: {"x": slots["x"] + 1})
    second = handler(change_batch=lambda est, slots: {"y": slots["x"] * 10})
    ignoring = handler(change_batch=nothing, change_objective=nothing)
    one = np.ones(1)
    assert hooks(second, ignoring, first).change_batch({"x": one, "y": one * 2}) == {"x": 2, "y": 20}
    doubles = handler(change_outputs=lambda est, outputs, slots: {"o": outputs["o"] * slots["x"]})
    assert hooks(doubles).change_outputs({"o": 3}, {"x": 2}) == {"o": 6}
    adds = handler(change_objective=lambda est, objectives, loss: (*objectives, loss))
    assert hooks(adds, ignoring).change_objective([1], loss=2) == [1, 2]
    asked: list[str] = []
    holds = [handler(hold_update=lambda est, loss: asked.append(loss) or 1) for _ in range(2)]
    assert hooks(*holds).hold_update(loss="L") and asked == ["L", "L"]  # all are asked


def test_hooks_must_return_known_names() -> None:
    wrong = handler("Wrong", change_batch=lambda est: {"xa": 1}, change_outputs=lambda est: {"xa": 1})
    for hook, arguments in (("change_batch", [{"x": np.ones(1)}]), ("change_outputs", [{"x": 1}, {}])):
        with pytest.raises(HandlerError, match=f'Wrong.{hook} returned "xa" .did you mean "x"'):
            getattr(hooks(wrong), hook)(*arguments)


SLOTS = {"x": np.ones((3, 16)), "y": np.ones((2, 16, 4)), "z": None}
FEWER = "but the slots hold 16 samples along axis 1"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": np.ones((1, 16), "int32"), "z": np.ones((1, 16))}, None),
        ({**SLOTS, "y": None}, None),
        ({"y": np.ones((2, 5, 4))}, f'Cuts.change_batch returned "y" of shape (2, 5, 4), {FEWER}'),
        ({"z": np.ones((16, 15))}, f'Cuts.change_batch returned "z" of shape (16, 15), {FEWER}'),
    ],
)
def test_a_batch_keeps_its_number_of_samples(changed: Any, message: str | None) -> None:
    changes = hooks(handler(change_batch=nothing), handler("Cuts", change_batch=lambda est, slots: changed))
    expected = pytest.raises(HandlerError, match=re.escape(message)) if message else contextlib.nullcontext()
    with expected:
        assert changes.change_batch(SLOTS, batch_axis=1).keys() == SLOTS.keys()


def test_context_managers_that_cannot_be_entered_are_named() -> None:
    left: list[str] = []
    stack = contextlib.ExitStack()
    stack.callback(left.append, "left")
    broken = contextlib.contextmanager(_raising(KeyError("lost")))
    handlers = [handler(around_step=lambda est: stack), handler("Broken", around_step=broken)]
    message = r"raised in Broken.around_step \(epoch 1, batch 1\)$"
    with pytest.raises(KeyError, match=message), hooks(*handlers).around("step"):
        pytest.fail("entered")
    assert left == ["left"]
