"""Schedules of learning rates by update, and of loss weights by epoch or batch."""

import copy
from typing import Any

import numpy as np
import pytest

from multifit import MultiEstimator, RunState, TaskSpec, TrainerSpec
from multifit.schedules import OneCycle, ScaledSchedule, WarmUp, piecewise, ramp
from tests.common.compare import assert_same_parameters, twins
from tests.common.hand_loop import SILENT
from tests.common.noted import with_notes

import mxnet as mx  # isort: skip


def test_one_cycle_rises_once_and_falls_once() -> None:
    cycle = OneCycle(0.5, 100, warm=0.2, start_divisor=10, final_divisor=1000)
    rates = [cycle(update) for update in range(130)]
    assert rates[0] == pytest.approx(0.05) and rates[20] == max(rates) == 0.5
    assert rates[100] == pytest.approx(0.0005) and set(rates[100:]) == {rates[100]}
    assert np.all(np.diff(rates[:21]) > 0) and np.all(np.diff(rates[20:101]) < 0)
    assert rates[10] == pytest.approx((0.05 + 0.5) / 2)  # half of each cosine
    assert rates[60] == pytest.approx((0.5 + 0.0005) / 2)
    assert [cycle(update) for update in range(130)] == rates  # it has no state


@pytest.mark.parametrize("own", [False, True])
def test_one_cycle_in_an_optimizer(own: bool) -> None:
    """Adam replaces a scheduler's base_lr by its own default; the cycle's peak is max_lr all the same."""
    net, cycle = a_net(), OneCycle(0.5, 8, warm=0.5)
    trainers: Any = TrainerSpec(".*", "adam", lr_scheduler=cycle)
    if own:
        trainers = mx.gluon.Trainer(net.collect_params(), "adam", {"lr_scheduler": cycle})
    history = MultiEstimator(net, Y, trainers).fit(DATA[:1], epochs=8, event_handlers=[])
    assert history["lr"] == pytest.approx([cycle(update) for update in range(1, 9)])
    assert max(history["lr"]) == 0.5


def test_warm_up_delays_the_schedule() -> None:
    inner = mx.lr_scheduler.CosineScheduler(50, base_lr=1.0, final_lr=0.1)
    warm = WarmUp(copy.deepcopy(inner), 10, start=0.2)
    assert [warm(update) for update in range(11)] == pytest.approx([0.2 + 0.08 * i for i in range(11)])
    assert [warm(10 + update) for update in range(60)] == [inner(update) for update in range(60)]
    assert WarmUp(OneCycle(1.0, 10), 5)(0) == 0


def test_warm_up_shares_the_base_rate() -> None:
    warm = WarmUp(mx.lr_scheduler.FactorScheduler(100, base_lr=1.0), 4)
    warm.base_lr = 2.0  # as optimizers do with a learning_rate of their own
    assert warm.base_lr == warm.scheduler.base_lr == 2.0
    assert [warm(update) for update in range(6)] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.0]


def test_scaled_while_the_schedule_is_at_0() -> None:
    rise = ScaledSchedule(WarmUp(mx.lr_scheduler.FactorScheduler(1000, base_lr=1.0), 4))
    rise.set(0.3, 0)
    assert [rise(update) for update in range(6)] == [0.3, 0.25, 0.5, 0.75, 1.0, 1.0]
    fall = ScaledSchedule(mx.lr_scheduler.CosineScheduler(4, base_lr=1.0))
    assert fall(4) == 0
    fall.set(0.3, 5)
    assert [fall(update) for update in range(5, 9)] == [0.3] * 4


class Own(mx.lr_scheduler.LRScheduler):
    """A user's own schedule."""

    def __init__(self, rate: Any) -> None:
        super().__init__(0.1)
        self.rate = rate

    def __call__(self, num_update: int) -> Any:
        return self.rate(num_update)


def a_net() -> Any:
    net = mx.gluon.nn.Dense(1, in_units=2)
    net.initialize()
    return net


Y = TaskSpec(outputs=["y"], labels=["y"], losses={"y": mx.gluon.loss.L2Loss()})
DATA = [(np.ones((2, 2), "float32"), np.ones((2, 1), "float32"))] * 5


@pytest.mark.parametrize(
    ("optimizer", "rate", "error"),
    [
        ("sgd", lambda: 1 / 0, ZeroDivisionError),
        ("rmsprop", lambda: None, TypeError),
        ("a gluon.Trainer", lambda: np.ones(2), Exception),
    ],
    ids=["raises", "None", "an array"],
)
def test_an_error_of_a_schedule_names_its_trainer(optimizer: str, rate: Any, error: type) -> None:
    net, schedule = a_net(), Own(lambda update: 0.1 if update < 3 else rate())
    trainer: Any = TrainerSpec(".*", optimizer, lr_scheduler=schedule)
    if optimizer == "a gluon.Trainer":
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"lr_scheduler": schedule})
    with pytest.raises(error) as raised:
        MultiEstimator(net, Y, {"mine": trainer}).fit(DATA, epochs=1, event_handlers=SILENT)
    text = with_notes(raised.value)
    assert "epoch 1, batch 3" in text and 'trainers["mine"]' in text


def test_a_schedule_that_has_no_first_rate_is_named_where_the_rate_is_read() -> None:
    estimator = MultiEstimator(a_net(), Y, TrainerSpec(".*", "sgd", lr_scheduler=Own(lambda n: 0.1 / n)))
    with pytest.raises(ZeroDivisionError, match=r'raised in trainers\["trainer"\].lr_scheduler$'):
        print(estimator.trainers["trainer"].learning_rate)


@pytest.mark.parametrize(("kind", "optimizer"), [(np.float32, "sgd"), (np.array, "rmsprop")])
def test_numbers_of_other_types_are_rates(kind: Any, optimizer: str) -> None:
    nets = twins(lambda: mx.gluon.nn.Dense(1, in_units=2), DATA[0][0])
    for net, rate in zip(nets, (kind(0.25), 0.25)):
        trainer = TrainerSpec(".*", optimizer, lr_scheduler=Own(lambda update, rate=rate: rate))
        MultiEstimator(net, Y, trainer).fit(DATA, epochs=1, event_handlers=SILENT)
    assert_same_parameters(*nets, rtol=0, atol=0)


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
