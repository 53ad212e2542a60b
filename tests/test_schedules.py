"""Schedules of learning rates, which need no engine."""

from typing import Any

import pytest

from multifit.schedules import OneCycle, ScaledSchedule, WarmUp, with_base_rate


def falling(num_update: int) -> float:
    """A schedule of a user, as a function."""
    return 0.5 / (1 + num_update)


falling.base_lr = 0.5  # type: ignore[attr-defined]


def test_warm_up_delays_any_schedule() -> None:
    warm = WarmUp(falling, 4, start=0.1)
    assert [warm(update) for update in (0, 2, 4, 5)] == pytest.approx([0.1, 0.3, 0.5, 0.25])
    assert warm.base_lr == 0.5


@pytest.mark.parametrize(
    "schedule",
    [OneCycle(0.4, 10), WarmUp(OneCycle(0.4, 10), 3), ScaledSchedule(WarmUp(OneCycle(0.4, 10), 3)), falling],
)
def test_rates_are_in_proportion_to_the_base_rate(schedule: Any) -> None:
    own = [schedule(update) for update in range(12)]
    for rate in (None, 2 * schedule.base_lr):
        other = with_base_rate(schedule, rate)
        assert [other(update) for update in range(12)] == pytest.approx([x * (2 if rate else 1) for x in own])
    assert [schedule(update) for update in range(12)] == own  # the copy is changed alone


def test_a_rate_that_is_set_scales_what_follows() -> None:
    scaled = ScaledSchedule(OneCycle(1.0, 8, warm=0.5))
    before = [scaled(update) for update in range(8)]
    scaled.set(before[3] * 3, 3)
    assert scaled(3) == before[3] * 3
    assert [scaled(update) for update in range(4, 8)] == pytest.approx([3 * rate for rate in before[4:]])
