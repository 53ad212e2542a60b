"""Twenty steps give a hand-written loop's parameters, on any number of devices, with any batch size."""

from __future__ import annotations

from typing import Any, Callable

import pytest

from multifit import LossSpec, TaskSpec, TrainerSpec

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip

CE, BCE = gluon.loss.SoftmaxCrossEntropyLoss(), gluon.loss.SigmoidBinaryCrossEntropyLoss()
OPTIMIZERS = {
    "sgd": {"learning_rate": 0.05, "momentum": 0.9, "wd": 1e-3},
    "adam": {"learning_rate": 5e-3},
}


def spec() -> TaskSpec:
    losses = {"digit": CE, "parity": LossSpec(BCE, weight=0.5)}
    return TaskSpec(inputs=["x"], outputs=["digit", "parity"], labels=["digit", "parity"], losses=losses)


def objective(net: Any, x: Any, digit: Any, parity: Any) -> Any:
    digits, parities = net(x)
    return CE(digits, digit) + 0.5 * BCE(parities, parity)


@pytest.mark.parametrize("size", [64, 33])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("trainers", [1, 2])
def test_equals_the_hand_written_loop(
    trainers: int, optimizer: str, size: int, devices: list, hybridized: bool,
    two_heads: type, data: Any, pair: Any, by_hand: Any, train: Any, same: Callable[..., None],
) -> None:  # fmt: skip
    batches = data([size] * 20)
    hand, ours = pair(two_heads, batches[0][0])
    if hybridized:
        hand.hybridize()
        ours.hybridize()
    parts = [[hand.body], [hand.digit, hand.parity]] if trainers == 2 else [[hand]]
    held = [[p for block in blocks for p in block.collect_params().values()] for blocks in parts]
    by_hand(hand, [gluon.Trainer(p, optimizer, OPTIMIZERS[optimizer]) for p in held], batches, objective)
    patterns = {"body": "body.*", "heads": "(digit|parity).*"} if trainers == 2 else {"all": ".*"}
    specs = {name: TrainerSpec(p, optimizer, OPTIMIZERS[optimizer]) for name, p in patterns.items()}
    train(ours, spec(), batches, devices, specs)
    same(ours, hand)


UNEVEN = {
    "one sample on two devices": [1] * 20,
    "seven over two": [7] * 20,
    "an uneven last batch": [8] * 19 + [3],
    "a last batch of one": [8] * 9 + [1] + [8] * 9 + [1],
    "a first batch of one": [1] + [8] * 19,
    "every size": list(range(1, 21)),
}


@pytest.mark.parametrize("sizes", UNEVEN.values(), ids=UNEVEN.keys())
def test_batches_need_not_be_even(
    sizes: list[int], devices: list, hybridized: bool,
    two_heads: type, data: Any, pair: Any, by_hand: Any, train: Any, same: Callable[..., None],
) -> None:  # fmt: skip
    batches = data(sizes)
    hand, ours = pair(two_heads, batches[0][0])
    if hybridized:
        hand.hybridize()
        ours.hybridize(static_alloc=True)
    sgd = OPTIMIZERS["sgd"]  # to which, unlike to Adam, the scale of a gradient matters
    by_hand(hand, [gluon.Trainer(hand.collect_params(), "sgd", sgd)], batches, objective)
    train(ours, spec(), batches, devices, TrainerSpec(".*", "sgd", sgd))
    same(ours, hand)


def test_three_devices_of_which_one_never_gets_a_sample(
    two_heads: type, data: Any, pair: Any, by_hand: Any, train: Any, same: Callable[..., None]
) -> None:
    batches = data([2] * 20)
    hand, ours = pair(two_heads, batches[0][0])
    by_hand(hand, [gluon.Trainer(hand.collect_params(), "adam", OPTIMIZERS["adam"])], batches, objective)
    train(ours, spec(), batches, [mx.cpu(i) for i in range(3)], TrainerSpec(".*", "adam", OPTIMIZERS["adam"]))
    same(ours, hand)


def test_a_second_fit_goes_on_where_the_first_ended(
    two_heads: type, data: Any, pair: Any, by_hand: Any, train: Any, same: Callable[..., None], silent: list
) -> None:
    batches = data([16] * 20)
    hand, ours = pair(two_heads, batches[0][0])
    by_hand(hand, [gluon.Trainer(hand.collect_params(), "adam", OPTIMIZERS["adam"])], batches, objective)
    estimator = train(ours, spec(), batches[:11], None, TrainerSpec(".*", "adam", OPTIMIZERS["adam"]))
    estimator.fit(batches[11:], batches=9, event_handlers=silent)
    same(ours, hand)


def test_checking_and_evaluating_between_the_steps_change_nothing(
    two_heads: type, data: Any, pair: Any, by_hand: Any, train: Any, same: Callable[..., None], silent: list
) -> None:
    batches = data([16] * 20)
    hand, ours = pair(two_heads, batches[0][0])
    ours.hybridize()
    by_hand(hand, [gluon.Trainer(hand.collect_params(), "adam", OPTIMIZERS["adam"])], batches, objective)
    estimator = train(ours, spec(), batches[:5], None, TrainerSpec(".*", "adam", OPTIMIZERS["adam"]))
    estimator.check(batches[:1], batches[1:2])
    estimator.evaluate(batches, event_handlers=silent)
    estimator.fit(batches[5:12], batches[:3], batches=7, event_handlers=silent)
    estimator.predict(batches[0][0])
    estimator.fit(batches[12:], epochs=1, event_handlers=silent)
    same(ours, hand)
