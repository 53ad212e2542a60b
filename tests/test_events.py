"""multifit.events: who is called, when, in which order, and what happens if it fails."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from mxnet.gluon.contrib.estimator import event_handler as gluon

from multifit.errors import DataError, UserCodeError
from multifit.events import CHANGES, MOMENTS, Events, HandlerError, Priority
from multifit.state import RunState
from multifit.triggers import Every


def handler(name: str = "Handler", priority: Any = None, **moments: Any) -> Any:
    """Make a handler whose class is called `name`; `moments` are its methods, without self."""
    body = {moment: staticmethod(method) for moment, method in moments.items()}
    if priority is not None:
        body["priority"] = priority
    return type(name, (), body)()


def nothing(estimator: Any, **facts: Any) -> None:
    """Do nothing."""


@pytest.fixture
def estimator() -> Any:
    return SimpleNamespace(state=RunState(epoch=1, batch=6))


def test_each_moment_reaches_who_implements_it(estimator: Any) -> None:
    heard = []
    for moment in MOMENTS:
        listener = handler(**{moment: lambda est, **facts: heard.append((est, facts))})
        events = Events(estimator, [listener])
        assert [each for each in MOMENTS if events.listens(each)] == [moment]
        for each in MOMENTS:
            assert events.emit(each, fact=each) is False
        assert heard.pop() == (estimator, {"fact": moment})
        assert not heard


def test_gluons_six_moments_are_among_ours() -> None:
    mixins = (
        gluon.TrainBegin,
        gluon.TrainEnd,
        gluon.EpochBegin,
        gluon.EpochEnd,
        gluon.BatchBegin,
        gluon.BatchEnd,
    )
    theirs = {name for mixin in mixins for name in vars(mixin) if not name.startswith("_")}
    assert len(theirs) == 6
    assert theirs < set(MOMENTS)


def test_gluons_stock_handlers_are_called_and_the_updating_one_is_refused(estimator: Any) -> None:
    estimator.max_epoch, estimator.max_batch = None, 1
    events = Events(estimator, [gluon.StoppingHandler()])
    events.emit("train_begin")
    assert events.emit("batch_end", batch=None, pred=None, label=None, loss=None)
    assert estimator.state.stop_reason == "StoppingHandler"

    class Mine(gluon.GradientUpdateHandler):
        pass

    for offender in (gluon.GradientUpdateHandler(), Mine(), Every(2, "batch", Mine())):
        with pytest.raises(ValueError, match="would step twice"):
            Events(estimator, [offender])


@pytest.mark.parametrize("given", [None, [], ()])
def test_no_handlers(estimator: Any, given: Any) -> None:
    assert Events(estimator, given).handlers == []


def test_one_handler_need_not_be_in_a_list(estimator: Any) -> None:
    one = handler(train_end=nothing)
    assert Events(estimator, one).handlers == [one]


def test_order_is_by_priority_and_else_as_given(estimator: Any) -> None:
    heard: list[str] = []
    given = [
        handler(name, priority, epoch_end=lambda est, name=name: heard.append(name))
        for name, priority in [
            ("log", Priority.LOGGING),
            ("a", None),
            ("metrics", Priority.METRICS),
            ("stop", Priority.STOPPING),
            ("b", Priority.NORMAL),
            ("validation", Priority.VALIDATION),
            ("bar", Priority.PROGRESS),
        ]
    ]
    Events(estimator, given).emit("epoch_end")
    assert heard == ["metrics", "validation", "a", "b", "stop", "bar", "log"]


def test_a_rhythm_keeps_the_priority(estimator: Any) -> None:
    first = Every(2, "epoch", handler("First", -5, epoch_end=nothing))
    second = handler("Second", -4, epoch_end=nothing)
    assert Events(estimator, [second, first]).handlers == [first, second]


def test_a_method_gets_the_facts_that_it_takes(estimator: Any) -> None:
    heard: list[Any] = []
    takers = [
        handler(batch_end=lambda est: heard.append(())),
        handler(batch_end=lambda est, loss: heard.append(loss)),
        handler(batch_end=lambda est, *args, **kwargs: heard.append(kwargs)),
        Every(6, "batch", handler(batch_end=lambda est, batch=None: heard.append(batch))),
    ]
    estimator.state.step = 6
    Events(estimator, takers).emit("batch_end", batch="B", loss="L")
    assert heard == [(), "L", {"batch": "B", "loss": "L"}, "B"]


def test_a_method_without_a_signature_gets_all(estimator: Any) -> None:
    unreadable = handler("Odd", batch_end=nothing)

    class Method:
        __signature__ = "none"  # inspect.signature refuses this

        def __call__(self, estimator: Any, **facts: Any) -> None:
            heard.append(facts)

    heard: list[Any] = []
    unreadable.batch_end = Method()
    Events(estimator, [unreadable]).emit("batch_end", batch=1)
    assert heard == [{"batch": 1}]


@pytest.mark.parametrize("moment", MOMENTS)
def test_only_the_ends_of_batch_and_epoch_can_stop(estimator: Any, moment: str) -> None:
    heard: list[str] = []
    given = [
        handler("Stopper", **{moment: lambda est: 1}),
        handler(**{moment: lambda est: heard.append(moment)}),
    ]
    stops = moment in ("batch_end", "epoch_end")
    assert Events(estimator, given).emit(moment) is stops
    assert estimator.state.stop_reason == ("Stopper" if stops else None)
    assert heard == [moment]  # the others are called all the same


def test_a_better_reason_stays(estimator: Any) -> None:
    def epoch_end(est: Any) -> bool:
        est.state.stop("it rains")
        return True

    assert Events(estimator, Every(2, "epoch", handler(epoch_end=epoch_end))).emit("epoch_end")
    assert estimator.state.stop_reason == "it rains"


def test_a_failing_handler_is_named_and_chained(estimator: Any) -> None:
    cause = KeyError("x")

    def batch_end(est: Any, **facts: Any) -> None:
        raise cause

    with pytest.raises(HandlerError) as caught:
        Events(estimator, handler("Plot", batch_end=batch_end)).emit("batch_end")
    assert str(caught.value) == "Plot failed in batch_end (epoch 2, batch 7): KeyError: 'x'"
    assert caught.value.__cause__ is cause
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(3), DataError("empty"), UserCodeError("in the net")]
)
def test_what_passes_as_it_is(estimator: Any, error: BaseException) -> None:
    def epoch_end(est: Any) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        Events(estimator, handler(epoch_end=epoch_end)).emit("epoch_end")
    assert caught.value is error


def test_all_that_cannot_be_handlers_are_named(estimator: Any) -> None:
    good = handler("Good", epoch_end=nothing)
    given = [
        type(good),
        handler("Lightning", on_epoch_end=nothing),
        handler("Other", call=nothing),
        handler("Hasty", "first", epoch_end=nothing),
        handler("Lost", math.nan, epoch_end=nothing),
        handler("GradientUpdateHandler", batch_end=nothing),
        Every(5),
        good,
        Every(2, "epoch", good),
    ]
    with pytest.raises(ValueError) as caught:
        Events(estimator, given)
    valid = ", ".join(f'"{moment}"' for moment in MOMENTS + CHANGES)
    assert str(caught.value).splitlines() == [
        "event_handlers that cannot be used:",
        "  1. Good is a class; pass an instance, Good(...)",
        '  2. Lightning has none of the moments, but "on_epoch_end" (did you mean "epoch_end"?); valid are '
        + valid,
        "  3. Other has none of the moments; valid are " + valid,
        "  4. Hasty has the priority 'first'; valid is a number",
        "  5. Lost has the priority nan; valid is a number",
        "  6. GradientUpdateHandler would step twice: the estimator itself moves the parameters after each "
        "batch; leave it out, or override fit_batch",
        "  7. Every has none of the moments; valid are " + valid,
        "  8. Good is given twice",
    ]


def test_twice_is_twice_with_or_without_a_rhythm(estimator: Any) -> None:
    good = handler("Good", epoch_end=nothing)
    for given in ([good, good], [good, Every(2, "epoch", good)], [Every(2, "epoch", good), good]):
        with pytest.raises(ValueError, match="Good is given twice"):
            Events(estimator, given)


def test_what_is_named_behind_stars_is_handed_on() -> None:
    seen: list[object] = []

    class Starred:
        def batch_end(self, *args: object, pred: object) -> None:
            seen.append((len(args), pred))

    estimator = type("Estimator", (), {"state": None})()
    Events(estimator, Starred()).emit("batch_end", batch=1, pred=2, loss=3)
    assert seen == [(1, 2)]
