"""Twenty steps give a hand-written loop's parameters, on any number of devices, with any batch size."""

from multifit import TrainerSpec
from tests.common.compare import assert_same_parameters, twins
from tests.common.data import digit_batches
from tests.common.grids import pairwise

from tests.common.hand_loop import ADAM, SGD, SILENT, assert_trains_as_by_hand, train  # isort: skip
from tests.common.hand_loop import train_by_hand, trainer_of  # isort: skip
from tests.common.nets import hybridized
from tests.common.shared_nets import two_heads, two_losses
from tests.common.specs import digit_spec

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip

OPTIMIZERS = {"sgd": {**SGD, "wd": 1e-3}, "adam": ADAM}


@pairwise("case", [(1, "sgd", 16), (1, "adam", 9), (2, "sgd", 9), (2, "adam", 16)])
def test_equals_the_hand_written_loop(case: tuple[int, str, int], devices: list, hybrid: bool) -> None:
    trainers, optimizer, size = case
    options, batches = OPTIMIZERS[optimizer], digit_batches([size] * 20)
    hand, net = twins(two_heads, batches[0][0])
    blocks = [[hand.body], [hand.digit, hand.parity]] if trainers == 2 else [[hand]]
    parameters = [[p for block in part for p in block.collect_params().values()] for part in blocks]
    train_by_hand(hand, [gluon.Trainer(part, optimizer, options) for part in parameters], batches, two_losses)
    patterns = {"body": "body.*", "heads": "(digit|parity).*"} if trainers == 2 else {"all": ".*"}
    specs = {name: TrainerSpec(pattern, optimizer, options) for name, pattern in patterns.items()}
    train(hybridized(net, hybrid), digit_spec(), batches, devices, specs)
    assert_same_parameters(net, hand)


UNEVEN = {
    "one sample on two devices": [1] * 5,
    "a last batch of one": [8, 8, 8, 1, 8, 8, 8, 1],
    "every size": list(range(1, 11)),
}


@pairwise("case", UNEVEN)
def test_batches_need_not_be_even(case: str, devices: list, hybrid: bool) -> None:
    # SGD, to which, unlike to Adam, the scale of a gradient matters
    batches, flags = digit_batches(UNEVEN[case]), {"static_alloc": True}
    hand, net = twins(two_heads, batches[0][0])
    train_by_hand(hand, trainer_of(hand), batches, two_losses)
    train(hybridized(net, hybrid, **flags), digit_spec(), batches, devices)
    assert_same_parameters(net, hand)


def test_three_devices_of_which_one_never_gets_a_sample() -> None:
    devices = [mx.cpu(i) for i in range(3)]
    batches = digit_batches([2] * 5)
    assert_trains_as_by_hand(two_heads, digit_spec(), batches, two_losses, devices, False, "adam", ADAM)


def test_other_calls_between_the_steps_change_nothing() -> None:
    """Several fits continue each other; checks, evaluations and predictions change nothing."""
    batches = digit_batches([16] * 12)
    hand, net = twins(two_heads, batches[0][0])
    train_by_hand(hand, trainer_of(hand, "adam", ADAM), batches, two_losses)
    estimator = train(hybridized(net), digit_spec(), batches[:4], None, TrainerSpec(".*", "adam", ADAM))
    estimator.check(batches[:1], batches[1:2])
    estimator.evaluate(batches, event_handlers=SILENT)
    estimator.fit(batches[4:9], batches[:3], batches=5, event_handlers=SILENT)
    estimator.predict(batches[0][0])
    estimator.fit(batches[9:], epochs=1, event_handlers=SILENT)
    assert_same_parameters(net, hand)
