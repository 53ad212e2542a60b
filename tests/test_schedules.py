"""Schedules of learning rates by update, and of loss weights by epoch or batch, which need no engine."""

from typing import Any

import numpy as np
import pytest

from multifit import RunState
from multifit.schedules import OneCycle, ScaledSchedule, WarmUp, piecewise, ramp, with_base_rate


def falling(num_update: int) -> float:
    """A schedule of a user, as a function."""
    return 0.5 / (1 + num_update)


falling.base_lr = 0.5  # type: ignore[attr-defined]


class Constant:
    """A schedule of one rate."""

    def __init__(self, rate: float) -> None:
        self.base_lr = rate

    def __call__(self, num_update: int) -> float:
        return self.base_lr


def test_warm_up_delays_any_schedule() -> None:
    warm = WarmUp(falling, 4, start=0.1)
    assert [warm(update) for update in (0, 2, 4, 5)] == pytest.approx([0.1, 0.3, 0.5, 0.25])
    assert warm.base_lr == 0.5


def test_a_base_rate_is_set_through_a_warm_up() -> None:
    warm = WarmUp(Constant(0.2), 4)
    warm.base_lr = 0.4  # as optimizers do
    assert [warm(update) for update in (2, 4)] == pytest.approx([0.2, 0.4])


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


def test_one_cycle_rises_once_and_falls_once() -> None:
    cycle = OneCycle(0.5, 100, warm=0.2, start_divisor=10, final_divisor=1000)
    rates = [cycle(update) for update in range(130)]
    assert rates[0] == pytest.approx(0.05) and rates[20] == max(rates) == 0.5
    assert rates[100] == pytest.approx(0.0005) and set(rates[100:]) == {rates[100]}
    assert np.all(np.diff(rates[:21]) > 0) and np.all(np.diff(rates[20:101]) < 0)
    assert rates[10] == pytest.approx((0.05 + 0.5) / 2)  # half of each cosine
    assert rates[60] == pytest.approx((0.5 + 0.0005) / 2)
    assert [cycle(update) for update in range(130)] == rates  # it has no state


def test_scaled_while_the_schedule_is_at_0() -> None:
    rise = ScaledSchedule(WarmUp(Constant(1.0), 4))
    rise.set(0.3, 0)
    assert [rise(update) for update in range(6)] == [0.3, 0.25, 0.5, 0.75, 1.0, 1.0]
    fall = ScaledSchedule(Constant(0.0))
    fall.set(0.3, 5)
    assert [fall(update) for update in range(5, 9)] == [0.3] * 4


def test_ramp_and_piecewise() -> None:
    by_epoch, by_step, weight = (
        ramp(0.2, 1.0, 4),
        ramp(1.0, 0.1, steps=9),
        piecewise({5: 1.0, 0: 0.25, 2: 0.5}),
    )
    assert [by_epoch(RunState(epoch=e)) for e in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    steps = [by_step(RunState(step=s)) for s in (*range(9), 9, 1000)]
    assert steps == pytest.approx([*(1 - 0.1 * s for s in range(9)), 0.1, 0.1])
    assert [weight(RunState(epoch=e)) for e in (0, 1, 2, 4, 5, 50)] == [0.25, 0.25, 0.5, 0.5, 1.0, 1.0]


def test_weights_are_immutable_and_have_a_readable_repr() -> None:
    assert repr(ramp(0, 1, epochs=5)) == "ramp(0, 1, epochs=5)"
    assert repr(piecewise({5: 1, 0: 0.1})) == "piecewise({0: 0.1, 5: 1})"
    assert ramp(0, 1, epochs=5) == ramp(0, 1, epochs=5) != ramp(0, 1, steps=5)
    with pytest.raises(AttributeError):
        ramp(0, 1, epochs=5).start = 3.0  # type: ignore[attr-defined]
