"""Losses of every kind enter the objective as a hand-written loop has them."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

from multifit import LossSpec, TaskSpec, TrainerSpec

from mxnet import gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

CE, L2 = gluon.loss.SoftmaxCrossEntropyLoss(), gluon.loss.L2Loss()
SGD = {"learning_rate": 0.05, "momentum": 0.9}
SIZES = [12] * 8 + [7] + [12] * 10 + [1]


def dense() -> Any:
    return nn.Dense(4)


def regression(sizes: list[int] = SIZES, inner: tuple = (4,)) -> list[tuple]:
    rng = np.random.RandomState(5)
    return [(rng.randn(n, 6).astype("float32"), rng.randn(n, *inner).astype("float32")) for n in sizes]


def per_sample(out: Any, y: Any) -> Any:
    return nd.mean(nd.square(out - y), axis=0, exclude=True)


def scalar(out: Any, y: Any) -> Any:
    return nd.mean(nd.square(out - y))


def whole(out: Any, y: Any) -> Any:
    return nd.square(out - y)


class Hybrid(gluon.HybridBlock):
    """A loss of the user's own, of the form that `reduce` gives."""

    def __init__(self, axes: Any) -> None:
        super().__init__()
        self.axes = axes

    def hybrid_forward(self, F: Any, out: Any, y: Any) -> Any:
        loss = F.square(out - y)
        return loss if self.axes == "none" else F.mean(loss, axis=self.axes, exclude=self.axes is not None)


def hybridized_loss(axes: Any) -> Any:
    loss = Hybrid(axes)
    loss.hybridize()
    return loss


LOSSES = {
    "function of (N,)": (per_sample, per_sample),
    "function of (N, T)": (whole, whole),
    "scalar function": (scalar, scalar),
    "own block of (N,)": (Hybrid(0), per_sample),
    "own block of (N, T)": (Hybrid("none"), whole),
    "own scalar block": (Hybrid(None), scalar),
    "hybridized block of (N,)": (hybridized_loss(0), per_sample),
    "hybridized block of (N, T)": (hybridized_loss("none"), whole),
    "hybridized scalar block": (hybridized_loss(None), scalar),
    "stock": (L2, lambda out, y: 0.5 * per_sample(out, y)),
}


ONE_FIRST = ["scalar function", "hybridized scalar block", "stock"]  # of one sample a scalar cannot be told


@pytest.mark.parametrize(
    "case, sizes", [*((case, SIZES) for case in LOSSES), *((case, [1, *SIZES]) for case in ONE_FIRST)]
)
def test_of_every_form(
    case: str,
    sizes: list[int],
    devices: list,
    hybridized: bool,
    pair: Any,
    by_hand: Any,
    train: Any,
    same: Any,
) -> None:
    loss, reference = LOSSES[case]
    batches = regression(sizes)
    hand, ours = pair(dense, batches[0][0])
    if hybridized:
        ours.hybridize()

    def objective(net: Any, x: Any, y: Any) -> Any:
        value = reference(net(x), y)
        return value * len(x) if "scalar" in case else value  # step(N) divides; a mean is divided already

    by_hand(hand, [gluon.Trainer(hand.collect_params(), "sgd", SGD)], batches, objective)
    spec = TaskSpec(outputs=["out"], labels=["y"], losses={"l": LossSpec(loss, "out", "y")})
    train(ours, spec, batches, devices, TrainerSpec(".*", "sgd", SGD))
    same(ours, hand)


class Annealed(gluon.HybridBlock):
    """A loss whose attribute somebody changes while training."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0

    def hybrid_forward(self, F: Any, out: Any, y: Any) -> Any:
        return self.factor * F.mean(F.square(out - y), axis=0, exclude=True)


def wrapped(loss: Any) -> Any:
    """A toolkit's own container around a loss that is not."""
    outer = nn.HybridSequential()
    outer.add(loss)
    return outer


def of_one(loss: Any) -> Any:
    class OfOne(gluon.HybridBlock):
        def hybrid_forward(self, F: Any, out: Any) -> Any:
            return loss.hybrid_forward(F, out, F.ones_like(out))

    return wrapped(OfOne())


def of_lambda(loss: Any) -> Any:
    return nn.HybridLambda(lambda F, out, y: loss.hybrid_forward(F, out, y))


@pytest.mark.parametrize("form", [lambda loss: loss, of_lambda, of_one], ids=["block", "lambda", "container"])
def test_a_loss_that_changes_while_training_is_not_frozen(
    form: Any, hybridized: bool, pair: Any, by_hand: Any, train: Any, same: Any
) -> None:
    batches, alone = regression([8] * 20), form is of_one
    hand, ours = pair(dense, batches[0][0])
    if hybridized:
        ours.hybridize()
    factors = iter([1.0 + 0.1 * i for i in range(20)])

    def objective(net: Any, x: Any, y: Any) -> Any:
        return next(factors) * per_sample(net(x), nd.ones_like(y) if alone else y)

    by_hand(hand, [gluon.Trainer(hand.collect_params(), "sgd", SGD)], batches, objective)
    loss = Annealed()

    def stepwise() -> Any:
        for i, batch in enumerate(batches):
            loss.factor = 1.0 + 0.1 * i
            yield batch

    spec = TaskSpec(
        outputs=["out"], labels=["y"], losses={"l": LossSpec(form(loss), "out", None if alone else "y")},
        unused=["y"] if alone else [],
    )  # fmt: skip
    train(ours, spec, stepwise(), None, TrainerSpec(".*", "sgd", SGD))
    same(ours, hand)


class Uncertain(gluon.HybridBlock):
    """A loss with a parameter of its own: the logarithm of a variance (Kendall, Gal and Cipolla 2018)."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.log_var = self.params.get("log_var", shape=(1,), init="zeros")

    def hybrid_forward(self, F: Any, out: Any, y: Any, log_var: Any) -> Any:
        error = F.mean(F.square(out - y), axis=0, exclude=True)
        return F.broadcast_add(F.broadcast_mul(F.exp(-log_var), error), log_var)


@pytest.mark.parametrize("own", ["plain", "hybridized"])
def test_a_loss_may_have_parameters(
    own: str, devices: list, hybridized: bool, pair: Any, by_hand: Any, train: Any, same: Any
) -> None:
    batches = regression()
    hand, ours = pair(dense, batches[0][0])
    losses = Uncertain(), Uncertain()
    losses[0].initialize()
    if own == "hybridized":
        losses[1].hybridize()
    if hybridized:
        ours.hybridize()
    held = [*hand.collect_params().values(), *losses[0].collect_params().values()]
    by_hand(hand, [gluon.Trainer(held, "sgd", SGD)], batches, lambda net, x, y: losses[0](net(x), y))
    spec = TaskSpec(outputs=["out"], labels=["y"], losses={"l": LossSpec(losses[1], "out", "y")})
    estimator = train(ours, spec, batches, devices, TrainerSpec(".*", "sgd", SGD))
    assert "losses.l.log_var" in estimator.trainers.parameter_names["trainer"]
    same(ours, hand)
    same(losses[1], losses[0])


class OwnLoss(gluon.HybridBlock):
    """A net that returns its own losses, as YOLOv3 does in training."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Dense(4)

    def hybrid_forward(self, F: Any, x: Any, y: Any) -> Any:
        out = self.inner(x)
        return F.mean(F.square(out - y), axis=0, exclude=True), F.mean(F.abs(out))


def test_a_net_may_return_its_losses(
    devices: list, hybridized: bool, pair: Any, by_hand: Any, train: Any, same: Any
) -> None:
    batches = regression()
    hand, ours = pair(OwnLoss, *batches[0])
    if hybridized:
        ours.hybridize()

    def objective(net: Any, x: Any, y: Any) -> Any:
        error, size = net(x, y)
        return error + 0.25 * size

    by_hand(hand, [gluon.Trainer(hand.collect_params(), "sgd", SGD)], batches, objective)
    spec = TaskSpec(
        inputs=["x", "y"], outputs=["error", "size"],
        losses={"error": LossSpec(outputs="error"), "size": LossSpec(outputs="size", weight=0.25)},
    )  # fmt: skip
    train(ours, spec, batches, devices, TrainerSpec(".*", "sgd", SGD))
    same(ours, hand)


def test_a_term_needs_no_label(
    devices: list, hybridized: bool, pair: Any, by_hand: Any, train: Any, same: Any
) -> None:
    batches = regression()
    hand, ours = pair(dense, batches[0][0])
    if hybridized:
        ours.hybridize()

    def small(out: Any) -> Any:
        return nd.sum(nd.abs(out), axis=1)

    def objective(net: Any, x: Any, y: Any) -> Any:
        out = net(x)
        return L2(out, y) + 0.1 * small(out)

    by_hand(hand, [gluon.Trainer(hand.collect_params(), "sgd", SGD)], batches, objective)
    losses = {"fit": LossSpec(L2, "out", "y"), "small": LossSpec(small, "out", weight=0.1)}
    train(
        ours,
        TaskSpec(outputs="out", labels=["y"], losses=losses),
        batches,
        devices,
        TrainerSpec(".*", "sgd", SGD),
    )
    same(ours, hand)


class Parts(gluon.HybridBlock):
    """A loss that returns a scalar, (N,) and (N, T)."""

    def hybrid_forward(self, F: Any, out: Any, y: Any) -> Any:
        error = F.square(out - y)
        return F.mean(error), F.mean(error, axis=0, exclude=True), error


PARTS = {
    "mean": lambda out, y: scalar(out, y) * len(out),
    "sample": per_sample,
    "all": whole,
}


@pytest.mark.parametrize("form", ["plain", "hybridized", "function"])
@pytest.mark.parametrize("minimize", PARTS)
def test_the_part_that_counts_is_minimised(
    minimize: str, form: str, devices: list, pair: Any, by_hand: Any, train: Any, same: Any
) -> None:
    batches = regression()
    hand, ours = pair(dense, batches[0][0])
    parts = Parts()
    if form == "hybridized":
        parts.hybridize()
    loss = (lambda out, y: parts.hybrid_forward(nd, out, y)) if form == "function" else parts
    reference = PARTS[minimize]
    trainer = gluon.Trainer(hand.collect_params(), "sgd", SGD)
    by_hand(hand, [trainer], batches, lambda net, x, y: reference(net(x), y))
    declared = LossSpec(loss, "out", "y", returns=list(PARTS), minimize=minimize)
    spec = TaskSpec(outputs="out", labels=["y"], losses={"l": declared})
    train(ours, spec, batches, devices, TrainerSpec(".*", "sgd", SGD))
    same(ours, hand)


def test_arguments_come_in_the_order_declared(pair: Any, by_hand: Any, train: Any, same: Any) -> None:
    batches = regression()
    hand, ours = pair(dense, batches[0][0])

    def against(y: Any, out: Any) -> Any:
        return nd.mean(nd.square(out - 2 * y), axis=1)

    trainer = gluon.Trainer(hand.collect_params(), "sgd", SGD)
    by_hand(hand, [trainer], batches, lambda net, x, y: against(y, net(x)))
    spec = TaskSpec(outputs="out", labels=["y"], losses={"l": LossSpec(against, arguments=["y", "out"])})
    train(ours, spec, batches, None, TrainerSpec(".*", "sgd", SGD))
    same(ours, hand)


class Shapely(gluon.HybridBlock):
    """A loss of a toolkit that looks at a shape, and so cannot be traced."""

    __module__ = "gluoncv.loss"

    def hybrid_forward(self, F: Any, out: Any, y: Any) -> Any:
        return F.sum(F.square(out - y), axis=1) / out.shape[1]


def test_what_cannot_be_traced_runs_operator_by_operator(
    devices: list, hybridized: bool, pair: Any, by_hand: Any, train: Any, same: Any
) -> None:
    batches = regression()
    hand, ours = pair(dense, batches[0][0])
    if hybridized:
        ours.hybridize()
    trainer = gluon.Trainer(hand.collect_params(), "sgd", SGD)
    by_hand(hand, [trainer], batches, lambda net, x, y: per_sample(net(x), y))
    spec = TaskSpec(outputs="out", labels=["y"], losses={"l": LossSpec(Shapely(), "out", "y")})
    estimator = train(ours, spec, batches, devices, TrainerSpec(".*", "sgd", SGD))
    same(ours, hand)
    assert "AttributeError while tracing" in estimator._engine.stages["train"].describe()


def test_a_constant_loss_has_no_gradient(
    devices: list, hybridized: bool, pair: Any, by_hand: Any, train: Callable[..., Any], same: Any
) -> None:
    batches = regression([6] * 20)
    hand, ours = pair(dense, batches[0][0])
    if hybridized:
        ours.hybridize()
    trainer = gluon.Trainer(hand.collect_params(), "sgd", {"learning_rate": 0.1})
    by_hand(hand, [trainer], batches[::2], lambda net, x, y: per_sample(net(x), y))

    def sometimes(out: Any, y: Any) -> Any:
        return per_sample(out, y) if float(y[0, 0].asscalar()) < 1e5 else nd.zeros(len(y))

    odd = [b if i % 2 == 0 else (b[0], np.full_like(b[1], 1e6)) for i, b in enumerate(batches)]
    spec = TaskSpec(outputs="out", labels=["y"], losses={"l": LossSpec(sometimes, "out", "y")})
    train(ours, spec, odd, devices, TrainerSpec(".*", "sgd", {"learning_rate": 0.1}))
    same(ours, hand)
