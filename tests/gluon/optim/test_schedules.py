"""Schedules of learning rates in MXNet's optimizers."""

from typing import Any

import numpy as np
import pytest

from multifit import MultiEstimator, TaskSpec, TrainerSpec
from multifit.schedules import OneCycle
from tests.common.compare import assert_same_parameters, twins
from tests.common.hand_loop import SILENT
from tests.common.noted import with_notes

import mxnet as mx  # isort: skip


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
        ("sgd", lambda: 1 / 0, ZeroDivisionError), ("rmsprop", lambda: None, TypeError),
        ("a gluon.Trainer", lambda: np.ones(2), Exception),
    ],
)  # fmt: skip
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
