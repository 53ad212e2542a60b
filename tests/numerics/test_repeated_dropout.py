"""Dropout of a body that runs backward once for each task: all tasks have the masks of the forward pass."""

from typing import Any

import numpy as np
import pytest

from multifit import MultiEstimator, TrainerSpec
from multifit.balance import Sum
from multifit.gluon.graph.cut import repeatable
from tests.common.compare import assert_same_parameters, twins
from tests.common.data import digit_batches
from tests.common.grids import TWO
from tests.common.hand_loop import SGD, SILENT, SIZES
from tests.common.nets import hybridized
from tests.common.shared_nets import heads, two_losses
from tests.common.specs import digit_spec
from tests.numerics.test_second_backward import Mask

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

SHAPE = (40, 50, 20)
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
    shared = np.broadcast_to(mask[tuple(slice(size) for size in shape)], SHAPE)
    np.testing.assert_array_equal(mask, shared)
    drawn = mask[tuple(slice(size) for size in shape)]
    assert y.dtype == np.dtype(dtype) and set(drawn.ravel()) <= {0, np.dtype(dtype).type(1 / (keep or 1))}
    error = 4 * (keep * (1 - keep) / drawn.size) ** 0.5
    assert (drawn != 0).mean() == pytest.approx(keep, abs=error + 1e-12)


def train(net: Any, method: Any, devices: Any = None) -> MultiEstimator:
    mx.random.seed(5)
    trainer = TrainerSpec(".*", "sgd", SGD)
    estimator = MultiEstimator(net, digit_spec(), trainer, devices, balance=method)
    estimator.fit(digit_batches(SIZES), epochs=1, event_handlers=SILENT)
    return estimator


def dropping() -> Any:
    return heads(nn.Dropout(0.4), nn.Dense(6, in_units=8))


def test_a_fit_is_the_loop_by_hand() -> None:
    """Which runs backward once, through the sum of the losses."""
    fitted, by_hand = twins(dropping, np.zeros((2, 10), "float32"))
    first, _, last = by_hand.body
    mask = hybridized(Mask())

    def masked(x: Any) -> Any:
        features = last(mask(first(x)))
        return by_hand.digit(features), by_hand.parity(features)

    train(fitted, Sum(on="parameters"))
    mx.random.seed(5)
    trainer = gluon.Trainer(by_hand.collect_params(), "sgd", dict(SGD))
    batches = digit_batches(SIZES)
    with (
        autograd.train_mode()
    ):  # the check of the first batch draws two masks: for the net, and for the cut graph
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


@pytest.mark.parametrize("name", NETS)
def test_passes_for_each_task_are_one_pass_of_the_sum(name: str) -> None:
    """Only the first batch of the second fit is measured."""
    make, on, devices = NETS[name]
    every, first = twins(make, np.zeros((2, 10), "float32"))
    train(hybridized(every), Sum(on=on), devices)
    train(hybridized(first), Sum(on=on, every=100), devices)
    assert_same_parameters(every, first, rtol=1e-4, atol=1e-6)
