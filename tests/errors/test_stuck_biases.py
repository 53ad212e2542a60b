"""Dense layers whose weights have no gradient: MXNet's operator for CPUs forgets that of the bias."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import MultiEstimator, TaskSpec, TrainerError, TrainerSpec

import mxnet as mx  # isort: skip
from mxnet import gluon, nd  # isort: skip

X, Y = nd.array(np.eye(6, 4)), nd.array([0, 1, 2, 0, 1, 2])
SGD = TrainerSpec(".*", "sgd", {"learning_rate": 0.1})


class Recurrent(gluon.nn.HybridBlock):
    """A cell that takes each sample as a sequence of one step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = gluon.rnn.GRUCell(3, input_size=4)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Return the state after the step."""
        return self.cell(x, [F.slice_axis(x, axis=1, begin=0, end=3)])[0]


def estimator(net: Any, **options: Any) -> MultiEstimator:
    net.initialize(mx.init.Xavier())
    losses = {"class": gluon.loss.SoftmaxCrossEntropyLoss()}
    spec = TaskSpec(inputs=["x"], outputs=["class"], labels=["class"], losses=losses)
    return MultiEstimator(net, spec, SGD, **options)


def dense() -> Any:
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(5, in_units=4), gluon.nn.Dense(3, in_units=5))
    return net


@pytest.mark.parametrize(
    ("make", "named"),
    [(dense, ['"0.bias"', '"1.bias"']), (Recurrent, ['"cell.i2h_bias"', '"cell.h2h_bias"'])],
    ids=["dense", "recurrent"],
)
def test_it_is_refused_by_name(make: Any, named: list[str]) -> None:
    net = make()
    net.collect_params(".*weight").setattr("grad_req", "null")
    fit = estimator(net).fit
    before = [parameter.data().asnumpy() for parameter in net.collect_params().values()]
    with pytest.raises(TrainerError) as caught:
        fit([(X, Y)], epochs=1)
    message = str(caught.value)
    assert all(f"{name} would not be updated" in message for name in named), message
    assert 'set it to "write", and give frozen=["' in message
    for parameter, value in zip(net.collect_params().values(), before):
        np.testing.assert_array_equal(parameter.data().asnumpy(), value)


def test_frozen_weights_leave_biases_their_gradients() -> None:
    net = dense()
    trained = estimator(net, frozen=".*weight")
    before = {name: p.data().asnumpy() for name, p in net.collect_params().items()}
    trained.fit([(X, Y)], epochs=1)
    for name, parameter in net.collect_params().items():
        moved = not np.array_equal(parameter.data().asnumpy(), before[name])
        assert moved == name.endswith("bias")


def test_biases_that_are_frozen_or_have_no_gradient_are_no_problem() -> None:
    net = dense()
    net[0].collect_params().setattr("grad_req", "null")
    net[1].weight.grad_req = "null"
    extra = gluon.nn.HybridSequential()
    extra.add(net, gluon.nn.Dense(3, in_units=3, use_bias=False))
    estimator(extra, frozen=r"0\.1\.bias").fit([(X, Y)], epochs=1)
