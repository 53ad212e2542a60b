"""A frozen BatchNorm normalises by its running statistics in training, and leaves them as they are."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import MultiEstimator, TrainerSpec
from tests.common.compare import assert_same_parameters, snapshot
from tests.common.grids import ONE, TWO
from tests.common.hand_loop import SILENT, train_by_hand
from tests.common.handlers import Freezes
from tests.common.nets import sequential
from tests.common.specs import L2

import mxnet as mx  # isort: skip
from mxnet import gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

RANDOM = np.random.RandomState(0)
BATCHES = [(RANDOM.randn(8, 5).astype("f") + 1, RANDOM.randn(8, 1).astype("f")) for _ in range(4)]
SGD = {"learning_rate": 0.05, "momentum": 0.5}


class HybridNet(gluon.HybridBlock):
    """A body with a BatchNorm, and a head."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body, self.head = body, nn.Dense(1, in_units=4)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.head(self.body(x))


class Net(gluon.Block):
    """The same, which cannot be hybridized."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body, self.head = body, nn.Dense(1, in_units=4)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x))


def body(norm: Any = nn.BatchNorm, **options: Any) -> Any:
    return sequential(nn.Dense(4, in_units=5), norm(in_channels=4, **options))


def symbolic(**options: Any) -> Any:
    """Return the body as a SymbolBlock, as if it had been imported."""
    layers = body(**options)
    return gluon.SymbolBlock(layers(mx.sym.var("x")), mx.sym.var("x"), layers.collect_params())


def sync(**options: Any) -> Any:
    return body(gluon.contrib.nn.SyncBatchNorm, num_devices=1, **options)


def filled(net: Any, contexts: Any = ONE) -> Any:
    """Initialise a net, always with the same values, and with running statistics as from training."""
    net.initialize(ctx=contexts)
    for name, parameter in net._collect_params_with_prefix().items():
        random = np.random.RandomState(len(name.split("_")[-1].split(".")[-1]) + sum(parameter.shape))
        parameter.set_data(nd.array(random.rand(*parameter.shape) + 0.3))
    return net


KINDS = {
    "plain": (Net, body, False),
    "a hybridized body": (Net, body, "body"),
    "hybridized": (HybridNet, body, True),
    "synchronised": (HybridNet, sync, True),
    "symbolic": (HybridNet, symbolic, True),
    "a symbolic body": (Net, symbolic, False),
}


def made(kind: str, contexts: Any = ONE, **options: Any) -> Any:
    outer, inner, hybrid = KINDS[kind]
    net = filled(outer(inner(**options)), contexts)
    if hybrid:
        (net.body if hybrid == "body" else net).hybridize()
    return net


def statistics(net: Any) -> dict[str, np.ndarray]:
    return {name: value for name, value in snapshot(net).items() if "running" in name}


def fit(
    net: Any, frozen: Any = (), contexts: Any = ONE, handlers: Any = (), **options: Any
) -> MultiEstimator:
    trainer = TrainerSpec(".*", "sgd", SGD)
    estimator = MultiEstimator(net, L2, trainer, frozen=frozen, context=contexts, **options)
    estimator.fit(BATCHES, epochs=2, event_handlers=[*SILENT, *handlers])
    return estimator


def by_hand(trained: str, **options: Any) -> Any:
    """Return a net whose parameters that match `trained` are, whose BatchNorm has ``use_global_stats``."""
    hand = made("plain", **{"use_global_stats": True, **options})
    named = hand._collect_params_with_prefix().items()
    trainer = gluon.Trainer([p for name, p in named if re.fullmatch(trained, name)], "sgd", SGD)
    train_by_hand(hand, trainer, BATCHES * 2, lambda net, x, y: L2(net(x), y))
    return hand


def assert_same(net: Any, hand: Any) -> None:
    """Compare nets of any kind: a SymbolBlock has other names, in the same order."""
    for one, other in zip(*(each.collect_params().values() for each in (net, hand))):
        np.testing.assert_allclose(one.data().asnumpy(), other.data().asnumpy(), rtol=2e-5, err_msg=one.name)


WAYS = ("name", "block", "grad_req")
TRAINED = [(kind, WAYS[i % 3], (ONE, TWO)[i % 2]) for i, kind in enumerate([*KINDS, "hybridized", "plain"])]


@pytest.mark.parametrize(("kind", "way", "contexts"), TRAINED)
def test_a_frozen_body_trains_as_by_hand(kind: str, way: str, contexts: Any) -> None:
    net = made(kind, contexts)
    before = snapshot(net)
    if way == "grad_req":
        net.body.collect_params().setattr("grad_req", "null")
    fit(net, {"name": "body.*", "block": net.body, "grad_req": ()}[way], contexts)
    after = snapshot(net)
    assert {n for n in after if (after[n] == before[n]).all()} == {n for n in after if "body" in n}
    hand = by_hand("head.*")
    for name in ("weight", "bias"):
        for value in getattr(net.head, name).list_data():
            np.testing.assert_allclose(value.asnumpy(), getattr(hand.head, name).data().asnumpy(), rtol=1e-5)


NO_AFFINE = {"scale": False, "center": False}
# what is frozen, of a BatchNorm with which options, whether that freezes the layer, and what is trained
SELECTED: dict[str, tuple[list[str], dict[str, Any], bool, str]] = {
    "scale and shift": ([".*gamma", ".*beta"], {}, True, "(body.0|head).*"),
    "statistics": ([".*running_mean"], {}, True, "(body.0|head).*|.*(gamma|beta)"),
    "one that has nothing to learn": (["body.1.*"], NO_AFFINE, True, "(body.0|head).*"),
    "nothing": ([], NO_AFFINE, False, "(body.0|head).*"),
    "the scale alone": (["body.1.gamma"], {}, False, "(body.0|head).*|.*beta"),
}


@pytest.mark.parametrize(("frozen", "options", "stays", "trained"), SELECTED.values(), ids=SELECTED)
def test_what_freezes_a_layer(frozen: Any, options: Any, stays: bool, trained: str) -> None:
    net = made("hybridized", **options)
    before = statistics(net)
    estimator = fit(net, frozen)
    assert estimator.plan.frozen_statistics == (
        ("body.1.running_mean", "body.1.running_var") if stays else ()
    )
    if stays:
        np.testing.assert_equal(statistics(net), before)
    assert_same_parameters(net, by_hand(trained, use_global_stats=stays, **options))


@pytest.mark.parametrize("kind", ["plain", "hybridized", "a symbolic body"])
def test_a_layer_that_is_unfrozen_learns_from_then_on(kind: str) -> None:
    net, hand = made(kind), made("plain")
    trainer = gluon.Trainer(hand.collect_params(), "sgd", SGD)
    for request, is_frozen in (("null", True), ("write", False)):
        hand.body.collect_params().setattr("grad_req", request)
        hand.body[1]._kwargs["use_global_stats"] = is_frozen
        train_by_hand(hand, trainer, BATCHES, lambda net, x, y: L2(net(x), y))
    net.body.collect_params().setattr("grad_req", "null")
    fit(net, handlers=[Freezes({len(BATCHES): ""})])
    assert_same(net, hand)


@pytest.mark.parametrize("kind", ["plain", "hybridized", "symbolic"])
def test_the_users_net_is_as_before(kind: str, tmp_path: Path) -> None:
    """Also in a loop of the user's own, in which its BatchNorm learns."""
    net, hand = made(kind), by_hand("head.*")
    fit(net, ["body.*"])
    if KINDS[kind][2] is True:
        net.export(str(tmp_path / "net"))
    x = nd.array(BATCHES[0][0])
    with mx.autograd.record():
        output = net(x)
        hand.body[1]._kwargs["use_global_stats"] = False
        np.testing.assert_allclose(output.asnumpy(), hand(x).asnumpy(), rtol=1e-5)


def test_the_plan_names_the_statistics() -> None:
    net = made("hybridized")
    net.body.collect_params().setattr("grad_req", "null")
    estimator = MultiEstimator(net, L2)
    lines = [" ".join(line.split()) for line in estimator.check(BATCHES).to_text(width=200).splitlines()]
    used = "2 running statistics used in training too: body.1.running_mean, body.1.running_var"
    assert {"frozen 4 parameters body.0.weight … body.1.beta", f"frozen {used}"} <= set(lines)
