"""Dropout of a body that runs backward several times: every pass has the masks of the forward pass."""

from typing import Any

import numpy as np
import pytest

from multifit import MultiEstimator, TrainerSpec
from multifit.balance import Sum
from multifit.gluon.graph.cut import repeatable
from tests.common.compare import assert_same_parameters, twins
from tests.common.data import digit_batches
from tests.common.grids import TWO, two_settings
from tests.common.hand_loop import SGD, SILENT, SIZES, trainer_of
from tests.common.handlers import handler
from tests.common.nets import Heads, hybridized, sequential
from tests.common.shared_nets import heads, two_losses
from tests.common.specs import digit_spec

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

SHAPE = (40, 50, 20)
EXAMPLE = np.zeros((2, 10), "float32")
MASKS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "every element": ({"p": 0.3}, SHAPE),
    "half of them": ({}, SHAPE),
    "of samples": ({"p": 0.4, "axes": (1, 2)}, (40, 1, 1)),
    "of columns": ({"p": 0.25, "axes": (0,)}, (1, 50, 20)),
    "always": ({"p": 0.5, "mode": "always"}, SHAPE),
    "of nothing": ({"p": 0.0}, SHAPE),
    "of all": ({"p": 1.0}, SHAPE),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_mask_is_drawn_once(name: str, dtype: str) -> None:
    options, shape = MASKS[name]
    keep = 1 - options.get("p", 0.5)
    operator = nd.CachedOp(repeatable(mx.sym.Dropout(mx.sym.var("x"), **options)), ())
    x = nd.full(SHAPE, 2, dtype=dtype)
    x.attach_grad()
    with autograd.record():
        y = operator(x)
    mask = y.asnumpy() / 2
    for head in (1, 3):  # both backward passes are right
        y.backward(nd.full(SHAPE, head, dtype=dtype), retain_graph=True)
        np.testing.assert_allclose(x.grad.asnumpy(), head * mask, rtol=1e-6)
    drawn = mask[tuple(slice(size) for size in shape)]
    np.testing.assert_array_equal(mask, np.broadcast_to(drawn, SHAPE))
    assert y.dtype == np.dtype(dtype) and set(drawn.ravel()) <= {0, np.dtype(dtype).type(1 / (keep or 1))}
    error = 4 * (keep * (1 - keep) / drawn.size) ** 0.5
    assert (drawn != 0).mean() == pytest.approx(keep, abs=error + 1e-12)


def train(net: Any, devices: Any = None, *handlers: Any, **options: Any) -> None:
    mx.random.seed(5)
    estimator = MultiEstimator(net, digit_spec(), TrainerSpec(".*", "sgd", SGD), devices, **options)
    estimator.fit(digit_batches(SIZES), epochs=1, event_handlers=[*SILENT, *handlers])


def dropping() -> Any:
    return heads(nn.Dropout(0.4), nn.Dense(6, in_units=8))


class Mask(gluon.HybridBlock):
    """Dropout that every backward pass repeats."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return x * F.BlockGrad(F.random.uniform_like(x) < 0.6) / 0.6


def test_a_fit_is_the_loop_by_hand() -> None:
    """Which runs backward once, through the sum of the losses."""
    fitted, by_hand = twins(dropping, EXAMPLE)
    first, _, last = by_hand.body
    mask = hybridized(Mask())

    def masked(x: Any) -> Any:
        features = last(mask(first(x)))
        return by_hand.digit(features), by_hand.parity(features)

    train(fitted, balance=Sum(on="parameters"))
    mx.random.seed(5)
    trainer, batches = trainer_of(by_hand), digit_batches(SIZES)
    with autograd.train_mode():  # the check of the first batch: the net and the cut graph draw a mask each
        for _ in range(2):
            masked(nd.array(batches[0][0]))
    for batch in batches:
        arrays = [nd.array(array, dtype=array.dtype) for array in batch]
        with autograd.record():
            loss = two_losses(masked, *arrays)
        loss.backward()
        trainer.step(len(arrays[0]))
    assert_same_parameters(fitted, by_hand)


class Sequence(gluon.HybridBlock):
    """Two layers of an LSTM, with a Dropout of its own between them."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = gluon.rnn.LSTM(6, num_layers=2, dropout=0.5, layout="NTC", input_size=2)
        self.digit, self.parity = nn.Dense(5, in_units=30), nn.Dense(1, in_units=30)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        features = F.flatten(self.lstm(F.reshape(x, shape=(0, 5, 2))))
        return self.digit(features), self.parity(features)


NETS: dict[str, tuple[Any, str, Any]] = {
    "Dropout": (dropping, "parameters", TWO),
    "a pattern": (dropping, "body.2.*", None),
    "BatchNorm": (lambda: heads(nn.Dropout(0.4), nn.BatchNorm(in_channels=8)), "parameters", None),
    "LSTM": (Sequence, "parameters", TWO),
}


@pytest.mark.parametrize(("make", "on", "devices"), NETS.values(), ids=NETS)
def test_passes_for_each_task_are_one_pass_of_the_sum(make: Any, on: str, devices: Any) -> None:
    """Only the first batch of the second fit is measured."""
    every, first = twins(make, EXAMPLE)
    train(hybridized(every), devices, balance=Sum(on=on))
    train(hybridized(first), devices, balance=Sum(on=on, every=100))
    assert_same_parameters(every, first, rtol=1e-4, atol=1e-6)


@two_settings
def test_a_handler_may_go_back_before_the_step_does(devices: list, hybrid: bool) -> None:
    """The training is that without the handler, and so is the gradient that the handler saw first."""
    norms: list[float] = []

    def slopes(estimator: Any, objectives: list, loss: dict) -> list:
        weight = estimator.parameters["body.0.weight"].data(objectives[0].context)
        for values in loss.values():
            gradient = autograd.grad(values[0], weight, retain_graph=True)[0]
            norms.append(float(gradient.norm().asscalar()))
        return objectives

    def make() -> Heads:
        return Heads(body=sequential(nn.Dense(16), Mask(), nn.Dense(8)), digit=5, parity=1)

    watched, alone = twins(make, EXAMPLE)
    # a handler that changes the objective draws the masks in the order of another graph
    unchanged = handler(change_objective=lambda estimator, objectives: objectives)
    train(hybridized(watched, hybrid), devices, handler(change_objective=slopes))
    train(hybridized(alone, hybrid), devices, unchanged)
    assert_same_parameters(watched, alone)
    assert len(norms) == 2 * len(SIZES) and all(norms)
