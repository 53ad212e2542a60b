"""Losses of every kind enter the objective as in a hand-written loop."""

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, TaskSpec
from tests.common.compare import assert_same_parameters, twins
from tests.common.data import regression_batches
from tests.common.grids import ONE, TWO, pairwise, plain_or_hybrid, two_settings
from tests.common.hand_loop import SGD, SIZES, assert_trains_as_by_hand, train, train_by_hand
from tests.common.losses import PARTS, Parts, SquaredError
from tests.common.nets import hybridized, sequential
from tests.common.specs import L2, one_loss_spec

from mxnet import gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip


def dense() -> Any:
    return nn.Dense(4)


def per_sample(out: Any, y: Any) -> Any:
    return nd.mean(nd.square(out - y), axis=0, exclude=True)


def scalar(out: Any, y: Any) -> Any:
    return nd.mean(nd.square(out - y))


def whole(out: Any, y: Any) -> Any:
    return nd.square(out - y)


LOSSES = {
    "function of (N,)": (per_sample, per_sample),
    "function of (N, T)": (whole, whole),
    "scalar function": (scalar, scalar),
    "hybridized block of (N,)": (hybridized(SquaredError(0)), per_sample),
    "hybridized scalar block": (hybridized(SquaredError(None)), scalar),
    "stock": (L2, lambda out, y: 0.5 * per_sample(out, y)),
    "scalar of a stock loss": (gluon.loss.L2Loss(batch_axis=None), lambda out, y: 0.5 * scalar(out, y)),
}
# a first batch of one hides a scalar
ONE_FIRST = ["scalar function", "hybridized scalar block"]


@pairwise("case", [*((loss, False) for loss in LOSSES), *((loss, True) for loss in ONE_FIRST)])
def test_of_every_form(case: tuple[str, bool], devices: list, hybrid: bool) -> None:
    name, one_first = case
    loss, reference = LOSSES[name]

    def objective(net: Any, x: Any, y: Any) -> Any:
        value = reference(net(x), y)
        return value * len(x) if "scalar" in name else value  # step(N) divides; a mean is divided already

    batches = regression_batches([1, *SIZES] if one_first else SIZES)
    assert_trains_as_by_hand(dense, one_loss_spec(loss), batches, objective, devices, hybrid)


class Annealed(gluon.HybridBlock):
    """A loss whose attribute somebody changes while training."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0

    def hybrid_forward(self, F: Any, out: Any, y: Any) -> Any:
        return self.factor * F.mean(F.square(out - y), axis=0, exclude=True)


def of_one(loss: Any) -> Any:
    """A toolkit's own container around a loss that is not."""

    class OfOne(gluon.HybridBlock):
        def hybrid_forward(self, F: Any, out: Any) -> Any:
            return loss.hybrid_forward(F, out, F.ones_like(out))

    return sequential(OfOne())


@pytest.mark.parametrize("form", [lambda loss: loss, of_one], ids=["block", "container"])
@plain_or_hybrid
def test_a_loss_that_changes_while_training_is_not_frozen(form: Any, hybrid: bool) -> None:
    batches, alone = regression_batches([8] * 6), form is of_one
    factors = iter([1.0 + 0.1 * i for i in range(6)])

    def objective(net: Any, x: Any, y: Any) -> Any:
        return next(factors) * per_sample(net(x), nd.ones_like(y) if alone else y)

    loss = Annealed()

    def stepwise() -> Any:
        for i, batch in enumerate(batches):
            loss.factor = 1.0 + 0.1 * i
            yield batch

    spec = TaskSpec(
        outputs=["out"], labels=["y"], losses={"l": LossSpec(form(loss), "out", None if alone else "y")},
        unused=["y"] if alone else [],
    )  # fmt: skip
    assert_trains_as_by_hand(dense, spec, batches, objective, ONE, hybrid, fed=stepwise())


class Uncertain(gluon.HybridBlock):
    """A loss with a parameter of its own: the logarithm of a variance (Kendall, Gal and Cipolla 2018)."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.log_var = self.params.get("log_var", shape=(1,), init="zeros")

    def hybrid_forward(self, F: Any, out: Any, y: Any, log_var: Any) -> Any:
        error = F.mean(F.square(out - y), axis=0, exclude=True)
        return F.broadcast_add(F.broadcast_mul(F.exp(-log_var), error), log_var)


@pairwise("own", ["plain", "hybridized"])
def test_a_loss_may_have_parameters(own: str, devices: list, hybrid: bool) -> None:
    batches = regression_batches(SIZES)
    hand, net = twins(dense, batches[0][0])
    losses = Uncertain(), hybridized(Uncertain(), own == "hybridized")
    losses[0].initialize()
    held = [*hand.collect_params().values(), *losses[0].collect_params().values()]
    train_by_hand(hand, gluon.Trainer(held, "sgd", SGD), batches, lambda net, x, y: losses[0](net(x), y))
    estimator = train(hybridized(net, hybrid), one_loss_spec(losses[1]), batches, devices)
    assert "losses.l.log_var" in estimator.trainers.parameters["trainer"]
    assert_same_parameters(net, hand)
    assert_same_parameters(losses[1], losses[0])


@pytest.mark.parametrize("form, devices", [("hybridized", ONE), ("function", TWO)])
@pytest.mark.parametrize("minimize", PARTS)
def test_the_part_that_counts_is_minimised(minimize: str, form: str, devices: list) -> None:
    parts = hybridized(Parts(), form == "hybridized")
    loss = (lambda out, y: parts.hybrid_forward(nd, out, y)) if form == "function" else parts
    references = {"mean": lambda out, y: scalar(out, y) * len(out), "sample": per_sample, "all": whole}

    def objective(net: Any, x: Any, y: Any) -> Any:
        return references[minimize](net(x), y)

    spec = one_loss_spec(loss, returns=list(PARTS), minimize=minimize)
    assert_trains_as_by_hand(dense, spec, regression_batches(SIZES), objective, devices)


class Shapely(gluon.HybridBlock):
    """A loss of a toolkit that looks at a shape, and so cannot be traced."""

    __module__ = "gluoncv.loss"

    def hybrid_forward(self, F: Any, out: Any, y: Any) -> Any:
        return F.sum(F.square(out - y), axis=1) / out.shape[1]


@two_settings
def test_a_loss_that_cannot_be_traced_runs_operator_by_operator(devices: list, hybrid: bool) -> None:
    estimator = assert_trains_as_by_hand(
        dense, one_loss_spec(Shapely()), regression_batches(SIZES),
        lambda net, x, y: per_sample(net(x), y), devices, hybrid,
    )  # fmt: skip
    assert "AttributeError while tracing" in estimator._session.stages["train"].describe()


@two_settings
def test_a_constant_loss_has_no_gradient(devices: list, hybrid: bool) -> None:
    def sometimes(out: Any, y: Any) -> Any:
        return per_sample(out, y) if float(y[0, 0].asscalar()) < 1e5 else nd.zeros(len(y))

    batches = regression_batches([6] * 8)
    odd = [
        batch if i % 2 == 0 else (batch[0], np.full_like(batch[1], 1e6)) for i, batch in enumerate(batches)
    ]
    assert_trains_as_by_hand(
        dense, one_loss_spec(sometimes), batches[::2], lambda net, x, y: per_sample(net(x), y), devices,
        hybrid, options={"learning_rate": 0.1}, fed=odd,
    )  # fmt: skip
