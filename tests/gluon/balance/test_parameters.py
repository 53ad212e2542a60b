"""Methods that compare the gradients of shared parameters: exact, with a backward pass for each task."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import GradientAccumulation, LossSpec, MultiEstimator, SpecError, TaskSpec, TrainerSpec
from multifit.balance import MGDA, Sum, UPGrad
from multifit.balance.weighing import weigh_gradients
from tests.common.compare import assert_same_parameters, twins
from tests.common.data import digit_batches
from tests.common.grids import TWO
from tests.common.hand_loop import SGD, SILENT, SIZES
from tests.common.nets import Heads, hybridized, sequential
from tests.common.ranks import run_ranks
from tests.common.specs import BCE, CE, L2, digit_spec

from mxnet import autograd, gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

BATCHES = digit_batches(SIZES)[:-1]  # two devices need two samples


class Nested(gluon.HybridBlock):
    """Two tasks part behind a layer that a third one does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.pair = nn.Dense(6, activation="tanh"), nn.Dense(4, activation="tanh")
        self.digit, self.parity, self.size = nn.Dense(5), nn.Dense(1), nn.Dense(1)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        features = self.body(x)
        pair = self.pair(features)
        return self.digit(pair), self.parity(pair), self.size(features)


def spec() -> TaskSpec:
    size = LossSpec(L2, "size", "parity", weight=0.1)
    losses = {"digit": CE, "parity": LossSpec(BCE, weight=0.5), "size": size}
    return digit_spec(outputs=["digit", "parity", "size"], losses=losses)


def train_by_hand(net: Any, method: Any, compared: str) -> list[np.ndarray]:
    """Train with one whole backward pass for each task; return the weights of every batch."""
    trainer = gluon.Trainer(net.collect_params(), "sgd", dict(SGD))
    parameters = net._collect_params_with_prefix()
    shared = [p for name, p in parameters.items() if name.startswith(("body", "pair"))]
    rows_of = [p for name, p in parameters.items() if name.startswith(tuple(compared.split("|")))]
    weights, used = np.ones(3), []
    for step, batch in enumerate(BATCHES):
        x, digit, parity = (nd.array(array, dtype=array.dtype) for array in batch)
        with autograd.record():
            digits, parities, sizes = net(x)
            losses = [
                CE(digits, digit).mean(),
                0.5 * BCE(parities, parity).mean(),
                0.1 * L2(sizes, parity).mean(),
            ]
        gradients = []
        for loss in losses:
            for parameter in parameters.values():
                parameter.zero_grad()
            loss.backward(retain_graph=True)
            gradients.append({id(p): p.grad().asnumpy() for p in parameters.values()})
        rows = np.stack([np.concatenate([g[id(p)].ravel() for p in rows_of]) for g in gradients]).astype(
            "float64"
        )
        if step % method.every == 0:
            weights, _ = weigh_gradients(method, np.ones(3), rows @ rows.T, weights, {}, 0, step)
        used.append(weights)
        for parameter in parameters.values():
            factors = weights if any(parameter is p for p in shared) else np.ones(3)
            total = sum(factor * g[id(parameter)] for factor, g in zip(factors, gradients))
            parameter.grad()[:] = nd.array(total)
        trainer.step(1)
    return used


def fitted(net: Any, method: Any, devices: Any = None, **options: Any) -> MultiEstimator:
    trainers = TrainerSpec(".*", "sgd", SGD)
    handlers = [*SILENT, *options.pop("handlers", [])]
    declared = options.pop("spec", None) or spec()
    estimator = MultiEstimator(net, declared, trainers, devices, balance=method)
    estimator.fit(BATCHES, epochs=1, event_handlers=handlers)
    return estimator


CASES = {
    "UPGrad": (UPGrad(on="parameters"), "body|pair"),
    "MGDA, every other batch": (MGDA(on="parameters", every=2), "body|pair"),
    "of one layer": (UPGrad(on="body.*"), "body"),
}


@pytest.mark.parametrize("devices", [None, TWO], ids=["one device", "two"])
@pytest.mark.parametrize("name", CASES)
def test_a_fit_is_the_loop_by_hand(name: str, devices: Any) -> None:
    method, compared = CASES[name]
    by_hand, net = twins(Nested, BATCHES[0][0])
    used = train_by_hand(by_hand, method, compared)
    history = fitted(hybridized(net), method, devices).history
    assert_same_parameters(net, by_hand)
    for task, label in enumerate(("digit", "parity", "size")):
        assert history[f"train_weight_{label}"] == pytest.approx([np.mean([w[task] for w in used])], rel=1e-3)


def test_with_weights_of_1_a_fit_is_that_of_the_sum() -> None:
    plain, cut = twins(Nested, BATCHES[0][0])
    for net, method in ((plain, None), (cut, Sum(on="parameters"))):
        fitted(hybridized(net), method)
    assert_same_parameters(cut, plain, rtol=1e-5, atol=1e-6)


def dropped() -> Any:
    return Heads(body=sequential(nn.Dense(8), nn.Dropout(0.5)), digit=5, parity=1)


def sparse() -> Any:
    return Heads(body=nn.Embedding(100, 8, sparse_grad=True), digit=5, parity=1)


ERRORS: dict[str, tuple[Any, str, Any, Any, str]] = {
    "dropout": (dropped, "parameters", digit_spec, [], "its Dropout is the identity in every backward pass"),
    "accumulated": (
        Nested, "parameters", spec, [GradientAccumulation(2)], "gradients that are added up cannot be taken"
    ),
    "sparse": (sparse, "parameters", digit_spec, [], "sparse gradients are not compared"),
    "expression": (Nested, "(", spec, [], 'balance: on="(" is not a regular expression'),
    "unknown": (Nested, "bodies", spec, [], 'balance: on="bodies" matches no parameter'),
    "not shared": (Nested, "digit.*", spec, [], 'on="digit.*" selects no parameter that tasks share'),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_what_cannot_be_compared_is_refused(name: str) -> None:
    make, on, declared, handlers, message = ERRORS[name]
    with pytest.raises(SpecError) as raised:
        fitted(hybridized(make()), UPGrad(on=on), spec=declared(), handlers=handlers)
    assert message in str(raised.value)


def test_several_processes_compare_features_only() -> None:
    def joined(world: Any) -> None:
        MultiEstimator(Nested(), spec(), balance=UPGrad(on="parameters"), world=world)

    for error in run_ranks(2, joined):
        assert 'over several processes, gradients are compared on="features" only' in str(error)
