"""StoppingHandler."""

from typing import Any

import pytest

from multifit.handlers import MetricHandler, StoppingHandler

from .conftest import At


@pytest.mark.parametrize(
    ("arguments", "steps", "reason"),
    [
        ({"max_epoch": 2}, 6, "2 epochs"),
        ({"max_epoch": 1}, 3, "1 epoch"),
        ({"max_batch": 4}, 4, "4 batches"),
        ({"max_epoch": 2, "max_batch": 4}, 4, "4 batches"),
        ({"max_epoch": 1, "max_batch": 4}, 3, "1 epoch"),
        ({}, 15, None),
        ({"max_seconds": 4}, 4, "4 seconds"),
        ({"max_seconds": 3.5}, 4, "3.5 seconds"),
        ({"max_seconds": 99}, 15, None),
        ({"condition": lambda state: state.samples >= 40}, 5, "its condition"),
        ({"condition": lambda state: int(state.samples >= 40)}, 5, "its condition"),
        ({"condition": lambda state: "enough" if state.samples >= 40 else ""}, 5, "enough"),
        ({"max_batch": 4, "condition": lambda state: state.step >= 4}, 4, "4 batches"),  # limits go first
    ],
)
def test_limits_of_each_fit(run: Any, clock: Any, arguments: Any, steps: int, reason: str | None) -> None:
    run.fit(StoppingHandler(clock=clock, **arguments), epochs=5)
    assert (run.state.step, run.state.stop_reason) == (steps, reason)


@pytest.mark.parametrize(
    ("limits", "own", "steps"),
    [((2, None), {}, 6), ((None, 4), {}, 4), ((1, 1), {"max_epoch": 3, "max_batch": 5}, 5)],
)
def test_limits_default_to_the_estimators_also_in_a_second_fit(run: Any, limits, own, steps) -> None:
    (run.max_epoch, run.max_batch), stopping = limits, StoppingHandler(**own)
    for fits in (1, 2):
        run.fit(stopping, epochs=5)
        assert run.state.step == fits * steps


def test_handlers_can_change_the_limits(run: Any) -> None:
    # already passed when the second epoch ends
    shorten = At("epoch_begin", lambda estimator: setattr(estimator, "max_epoch", 1), step=3)
    run.max_epoch = 4
    run.fit(StoppingHandler(), shorten, epochs=5)
    assert run.state.step == 6


def test_time_and_figures_at_the_end_of_an_epoch_count(run: Any, clock: Any) -> None:
    slow = At("epoch_end", lambda estimator: setattr(clock, "now", clock.now + 100.0))
    run.fit(StoppingHandler(max_seconds=50, clock=clock), slow, epochs=5)
    assert run.state.step == 3
    run.fit(MetricHandler(), StoppingHandler(condition=lambda state: bool(run.history.last)), epochs=5)
    assert run.state.step == 6


@pytest.mark.parametrize(
    ("limit", "more"), [({"max_epoch": 3}, 3), ({"max_batch": 8}, 2), ({"max_seconds": 10}, 4)]
)
def test_counting_continues_from_a_checkpoint(run: Any, clock: Any, limit: Any, more: int) -> None:
    first, second = StoppingHandler(clock=clock), StoppingHandler(clock=clock, **limit)
    run.fit(first, epochs=2)
    state = first.state_dict()
    clock.now += 1000.0  # between two runs no time counts
    load = At("train_begin", lambda _: second.load_state_dict(state), priority=2000.0)
    run.fit(second, load, epochs=5)
    assert run.state.step == 6 + more
