"""StoppingHandler."""

from typing import Any

import pytest

from multifit.handlers import MetricHandler, StoppingHandler

from .conftest import At


@pytest.mark.parametrize(
    ("limits", "steps", "reason"),
    [
        ({"max_epoch": 2}, 6, "2 epochs"),
        ({"max_epoch": 1}, 3, "1 epoch"),
        ({"max_batch": 4}, 4, "4 batches"),
        ({"max_epoch": 2, "max_batch": 4}, 4, "4 batches"),
        ({"max_epoch": 1, "max_batch": 4}, 3, "1 epoch"),
        ({}, 15, None),
    ],
)
def test_limits(run: Any, limits: dict[str, int], steps: int, reason: str | None) -> None:
    run.fit(StoppingHandler(**limits), epochs=5)
    assert (run.state.step, run.state.stop_reason) == (steps, reason)


def test_limits_default_to_the_estimators_over_which_its_own_take_precedence(run: Any) -> None:
    for limits, own, steps in (
        ((2, None), {}, 6),
        ((None, 4), {}, 4),
        ((1, 1), {"max_epoch": 3, "max_batch": 5}, 5),
    ):
        run.state.step, (run.max_epoch, run.max_batch) = 0, limits
        run.fit(StoppingHandler(**own), epochs=5)
        assert run.state.step == steps


def test_handlers_can_change_the_limits(run: Any) -> None:
    # already passed when the second epoch ends
    shorten = At("epoch_begin", lambda estimator: setattr(estimator, "max_epoch", 1), step=3)
    run.max_epoch = 4
    run.fit(StoppingHandler(), shorten, epochs=5)
    assert run.state.step == 6


def test_a_second_fit_starts_counting_again(run: Any) -> None:
    handler = StoppingHandler(max_epoch=2)
    run.fit(handler, epochs=5)
    run.fit(handler, epochs=5)
    assert run.state.step == 12


@pytest.mark.parametrize(
    ("seconds", "steps", "reason"), [(4, 4, "4 seconds"), (3.5, 4, "3.5 seconds"), (99, 15, None)]
)
def test_a_time_limit(run: Any, clock: Any, seconds: float, steps: int, reason: str | None) -> None:
    run.fit(StoppingHandler(max_seconds=seconds, clock=clock), epochs=5)
    assert (run.state.step, run.state.stop_reason) == (steps, reason)


def test_time_at_the_end_of_an_epoch_counts(run: Any, clock: Any) -> None:
    slow = At("epoch_end", lambda estimator: setattr(clock, "now", clock.now + 100.0))
    run.fit(StoppingHandler(max_seconds=50, clock=clock), slow, epochs=5)
    assert run.state.step == 3


@pytest.mark.parametrize(
    ("answer", "reason"), [(True, "its condition"), (1, "its condition"), ("enough", "enough")]
)
def test_a_condition(run: Any, answer: Any, reason: str) -> None:
    handler = StoppingHandler(condition=lambda state: answer if state.samples >= 40 else "")
    run.fit(handler, epochs=5)
    assert (run.state.step, run.state.stop_reason) == (5, reason)


def test_a_condition_on_the_figures_of_an_epoch(run: Any) -> None:
    """It is asked at an epoch's end too, where the figures are new."""
    run.fit(MetricHandler(), StoppingHandler(condition=lambda state: bool(run.history.last)), epochs=5)
    assert run.state.step == 3


def test_a_limit_takes_precedence_over_a_condition_as_reason(run: Any) -> None:
    run.fit(StoppingHandler(max_batch=4, condition=lambda state: state.step >= 4), epochs=5)
    assert run.state.stop_reason == "4 batches"


def test_counting_continues_from_a_checkpoint(run: Any, clock: Any) -> None:
    first = StoppingHandler(clock=clock)
    run.fit(first, epochs=2)
    state = first.state_dict()
    for limits, more in (({"max_epoch": 3}, 3), ({"max_batch": 8}, 2), ({"max_seconds": 10}, 4)):
        handler = StoppingHandler(clock=clock, **limits)
        clock.now += 1000.0  # between two runs no time counts
        load = At("train_begin", lambda _, handler=handler: handler.load_state_dict(state), priority=2000.0)
        begun = run.state.step
        run.fit(handler, load, epochs=5)
        assert run.state.step - begun == more
