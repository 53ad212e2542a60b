"""What nets and losses return in later batches is held to what they returned in the first."""

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MetricSpec, MultiEstimator, SpecError, TaskSpec
from tests.common.compare import assert_same_parameters, twins
from tests.common.data import regression_batches
from tests.common.hand_loop import SILENT, train, train_by_hand, trainer_of
from tests.common.specs import one_loss_spec

from mxnet import nd  # isort: skip
from mxnet.gluon import nn

from .setups import around, arrays

ODD = 1e3  # the first label of a batch in which something else is returned
WAY_OUT = (
    "return the same form in every batch: the same number of axes, and a row for each sample or one number "
    "for all"
)


def rows(out: Any, y: Any) -> Any:
    return nd.square(out - y.reshape((-1, 1))).mean(axis=1)


def is_odd(array: Any) -> bool:
    return float(array.reshape(-1)[0].asscalar()) == ODD


# What a loss returns at first, in an odd batch, and what the message says of the latter.
LOSSES = {
    "a number, not rows": (rows, lambda a, y: rows(a, y).mean(), "(1,) float32"),
    "rows, not a number": (lambda a, y: rows(a, y).mean(), rows, "(8,) float32"),
    "some of the rows": (rows, lambda a, y: rows(a, y)[:3], "(3,) float32"),
    "more axes": (rows, lambda a, y: nd.square(a), "(8, 3) float32"),
    "another dtype": (rows, lambda a, y: rows(a, y).astype("float64"), "(8,) float64"),
    "None": (rows, lambda a, y: None, "None"),
    "deep": (rows, lambda a, y: [[[[[[a]]]]]], "[[[[…]]]]"),
    "a tuple": (rows, lambda a, y: (rows(a, y), rows(a, y)), "2 parts, [(8,) float32, (8,) float32]"),
}  # fmt: skip


def with_odd(position: int, batches: int = 4) -> list[list[np.ndarray]]:
    data = [arrays()[:2] for _ in range(batches)]
    data[position][1] = np.full_like(data[position][1], ODD)
    return data


@pytest.mark.parametrize("case", LOSSES)
def test_a_loss(case: str) -> None:
    usual, other, text = LOSSES[case]

    def loss(a: Any, y: Any) -> Any:
        return other(a, y) if is_odd(y) else usual(a, y)

    setup = around(lambda dense, x: dense(x), losses={"digit": LossSpec(loss)})
    estimator = setup.make()
    for run, place in (
        (lambda: estimator.fit(with_odd(2), epochs=1, event_handlers=SILENT), "epoch 1, batch 3: "),
        (lambda: estimator.evaluate(with_odd(1), event_handlers=SILENT), "evaluating, batch 2: "),
    ):
        with pytest.raises(SpecError) as raised:
            run()
        message = str(raised.value)
        assert message.startswith(place)
        assert f'losses["digit"]: returns {text}' in message
        assert WAY_OUT in message
        assert len(message) < 700
    assert estimator.state.step == 2
    estimator.fit([arrays()[:2]], epochs=1, event_handlers=SILENT)


# What a net returns for the output "digit" in an odd batch, and what the message says.
NETS = {
    "more axes": (lambda a: a.reshape((8, 3, 1)), 'outputs: the net returns "digit" as (8, 3, 1) float32'),
    "fewer rows": (lambda a: a[:3], 'returns "digit" as (3, 3) float32 in a batch of 8 samples, but (8, 3)'),
    "another dtype": (lambda a: a.astype("int32"), 'returns "digit" as (8, 3) int32'),
    "a tuple": (lambda a: (a, a), "outputs: 1 declared (digit), the net returns 2 arrays"),
    "None": (lambda a: None, "the net returns 0 arrays and None: None"),
    "a dict": (lambda a: {"digits": a}, 'the net returns no "digit" (did you mean "digits"?)'),
}  # fmt: skip


@pytest.mark.parametrize("case", NETS)
def test_a_net(case: str) -> None:
    other, text = NETS[case]
    setup = around(lambda dense, x: other(dense(x)) if is_odd(x) else dense(x))
    data = [arrays()[:2] for _ in range(3)]
    odd = [np.full_like(data[0][0], ODD), data[0][1]]
    estimator = setup.make()
    with pytest.raises(SpecError) as raised:
        estimator.fit([*data, odd], epochs=1)
    assert str(raised.value).startswith("epoch 1, batch 4: ")
    assert text in str(raised.value)
    with pytest.raises(SpecError, match="evaluating, batch 2: "):
        estimator.evaluate([data[0], odd])


# Forms that may change: the shapes come from batches of many sizes, the first of which may be one sample.
@pytest.mark.parametrize(
    "loss",
    [
        lambda a, y: nd.square(a - y).mean(axis=1),
        lambda a, y: nd.square(a - y),
        lambda a, y: nd.square(a - y)[: max(1, len(a) // 2 - 1)].mean(axis=1),
        lambda a, y: (a * nd.ones_like(a)).reshape(-1)[: 2 + len(a) % 3],
        lambda a, y: nd.square(a).sum(axis=0),  # as long as the outputs are wide, in every batch
    ],
    ids=["rows", "tokens", "some of the rows", "any number", "columns"],
)
def test_what_may_change(loss: Any) -> None:
    batches = regression_batches([1, 8, 8, 5, 1, 2], outputs=(8,))
    hand, net = twins(lambda: nn.Dense(8), batches[0][0])
    train_by_hand(hand, trainer_of(hand), batches, lambda net, x, y: loss(net(x), y))
    train(net, one_loss_spec(loss), batches)
    assert_same_parameters(net, hand)


def test_a_metric_that_is_summed_on_the_device_cannot_move() -> None:
    net = nn.Dense(3, in_units=2)
    net.initialize()
    spec = TaskSpec(inputs=["x"], outputs="out", labels=["y"], metrics={"m": MetricSpec("mae", "out", "y")})
    estimator = MultiEstimator(net, spec)
    data = [(np.ones((4, 2), "float32"), np.ones((4, columns), "float32")) for columns in (3, 3, 1)]
    assert np.isfinite(estimator.evaluate(data[:2], [])["m"])
    with pytest.raises(SpecError, match=r'metrics\["m"\]: arrays of some batches can be summed, and'):
        estimator.evaluate(data, [])
