"""Methods that compare the gradients of shared parameters: exact, with a backward pass for each task."""

from typing import Any

import numpy as np
import pytest

from multifit import MultiEstimator, SpecError, TrainerSpec
from multifit.balance import MGDA, Sum, UPGrad
from multifit.balance.weighing import weigh_gradients
from tests.common.compare import assert_same_parameters, copy_parameters, twins
from tests.common.data import digit_batches
from tests.common.grids import TWO
from tests.common.hand_loop import SGD, SILENT, SIZES
from tests.common.nets import Heads, hybridized, sequential
from tests.common.shared_nets import Nested, Pretrained, Skipping, Tied, three_tasks
from tests.common.specs import BCE, CE, L2, digit_spec

from mxnet import autograd, gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

BATCHES = digit_batches(SIZES)[:-1]  # two devices need two samples


def train_by_hand(net: Any, method: Any, compared: str, window: int = 1) -> list[np.ndarray]:
    """Train with one whole backward pass for each task; return the weights of every batch.

    Updates by the mean gradient of `window` batches, or of those that are left at the end.
    """
    trainer = gluon.Trainer(net.collect_params(), "sgd", dict(SGD))
    parameters = net._collect_params_with_prefix()
    shared = [p for name, p in parameters.items() if name.startswith(("body", "pair"))]
    rows_of = [p for name, p in parameters.items() if name.startswith(tuple(compared.split("|")))]
    weights, used, added = np.ones(3), [], []
    for step, batch in enumerate(BATCHES):
        x, digit, parity = (nd.array(array, dtype=array.dtype) for array in batch)
        with autograd.record():
            digits, parities, sizes = net(x)
            per_sample = CE(digits, digit), 0.5 * BCE(parities, parity), 0.1 * L2(sizes, parity)
            losses = [loss.sum() for loss in per_sample]
        gradients = []
        for loss in losses:
            for parameter in parameters.values():
                parameter.zero_grad()
            loss.backward(retain_graph=True)
            gradients.append({id(p): p.grad().asnumpy() for p in parameters.values()})
        flat = [np.concatenate([g[id(p)].ravel() for p in rows_of]) for g in gradients]
        rows = np.stack(flat).astype("float64")
        if step % method.every == 0:
            gramian = rows @ rows.T / len(x) ** 2
            weights, _ = weigh_gradients(method, np.ones(3), gramian, weights, {}, 0, step)
        used.append(weights)
        totals = {}
        for parameter in parameters.values():
            factors = weights if any(parameter is p for p in shared) else np.ones(3)
            totals[parameter] = sum(factor * g[id(parameter)] for factor, g in zip(factors, gradients))
        added.append((len(x), totals))
        if len(added) == window or step == len(BATCHES) - 1:
            for parameter in parameters.values():
                parameter.grad()[:] = nd.array(sum(totals[parameter] for _, totals in added))
            trainer.step(sum(samples for samples, _ in added))
            added = []
    return used


def fitted(net: Any, method: Any, devices: Any = None, **options: Any) -> MultiEstimator:
    trainers = TrainerSpec(".*", "sgd", SGD)
    handlers = [*SILENT, *options.pop("handlers", [])]
    declared = options.pop("spec", None) or three_tasks()
    estimator = MultiEstimator(net, declared, trainers, devices, balance=method, **options)
    estimator.fit(BATCHES, epochs=1, event_handlers=handlers)
    return estimator


@pytest.mark.parametrize(
    ("method", "compared", "devices", "window"),
    [
        (UPGrad(on="parameters"), "body|pair", TWO, 1),
        (MGDA(on="parameters", every=2), "body|pair", None, 1),
        (UPGrad(on="body.*"), "body", None, 1),
        (UPGrad(on="parameters"), "body|pair", None, 2),
        (MGDA(on="parameters", every=2), "body|pair", TWO, 3),
    ],
    ids=["UPGrad", "MGDA, every other batch", "of one layer", "of two batches", "of three batches"],
)
def test_a_fit_is_the_loop_by_hand(method: Any, compared: str, devices: Any, window: int) -> None:
    """Batches that accumulate are each weighed by themselves."""
    by_hand, net = twins(Nested, BATCHES[0][0])
    used = train_by_hand(by_hand, method, compared, window)
    history = fitted(hybridized(net), method, devices, accumulate=window).history
    assert_same_parameters(net, by_hand)
    for task, label in enumerate(("digit", "parity", "size")):
        assert history[f"train_weight_{label}"] == pytest.approx([np.mean([w[task] for w in used])], rel=1e-3)


def normed() -> Any:
    return Heads(body=sequential(nn.Dense(8, in_units=10), nn.BatchNorm(in_channels=8)), digit=5, parity=1)


@pytest.mark.parametrize(("make", "spec", "rtol"), [(Nested, three_tasks, 1e-5), (normed, digit_spec, 1e-4)])
def test_with_weights_of_1_a_fit_is_that_of_the_sum(make: Any, spec: Any, rtol: float) -> None:
    """MXNet counts running statistics in the backward pass, of which there is one for each task."""
    plain, cut = twins(make, BATCHES[0][0])
    for net, method in ((plain, None), (cut, Sum(on="parameters"))):
        fitted(hybridized(net), method, spec=spec())
    assert_same_parameters(cut, plain, rtol=rtol, atol=rtol / 10)


@pytest.mark.parametrize(("on", "accumulate"), [("features", 2), (".*weight", 1)])
def test_frozen_parameters_are_not_compared(on: str, accumulate: int) -> None:
    """However a layer is frozen, weights and figures are those of training on what it computes."""
    nets = [*twins(Pretrained, BATCHES[0][0]), Skipping()]
    nets[2].initialize()
    copy_parameters(nets[0].rest, nets[2])
    nets[1].back.collect_params().setattr("grad_req", "null")
    made = [(nets[0].back(nd.array(x)).asnumpy(), *labels) for x, *labels in BATCHES]
    results = []
    for net, batches, frozen in zip(nets, (BATCHES, BATCHES, made), (["back.*"], [], [])):
        trainers = TrainerSpec(".*", "sgd", SGD)
        how = {"frozen": frozen, "balance": MGDA(on=on), "accumulate": accumulate}
        estimator = MultiEstimator(hybridized(net), digit_spec(), trainers, **how)
        results.append(estimator.fit(batches, epochs=2, event_handlers=SILENT))
    for history in results[1:]:
        for figure in results[0]:
            np.testing.assert_allclose(history[figure], results[0][figure], rtol=1e-5, err_msg=figure)


@pytest.mark.parametrize("on", ["features", "parameters"])
def test_a_bias_learns_beside_a_frozen_weight_that_the_body_takes_too(on: str) -> None:
    nets = twins(Tied, BATCHES[0][0])
    for net, method in zip(nets, (None, Sum(on=on))):
        trainers = TrainerSpec(".*", "sgd", SGD)
        options: Any = {"frozen": ["back.weight"], "balance": method}
        estimator = MultiEstimator(hybridized(net), digit_spec(), trainers, **options)
        estimator.fit(BATCHES, epochs=2, event_handlers=SILENT)
    assert_same_parameters(nets[1], nets[0])


@pytest.mark.parametrize("on", ["features", "parameters"])
def test_a_body_that_is_frozen_has_nothing_to_balance(on: str) -> None:
    options: Any = {"frozen": ["back.*", "rest.neck.*"], "balance": UPGrad(on=on)}
    estimator = MultiEstimator(hybridized(Pretrained()), digit_spec(), **options)
    with pytest.raises(SpecError, match="the tasks share no parameter that is trained"):
        estimator.check(BATCHES)


def test_gradients_that_the_user_adds_up_are_compared_batch_by_batch() -> None:
    """The trainer updates after each batch, and uses what that has added."""
    nets = twins(Nested, BATCHES[0][0])
    for net, request in zip(nets, ("write", "add")):
        net.collect_params().setattr("grad_req", request)
        fitted(hybridized(net), MGDA(on="parameters", every=2))
    assert_same_parameters(*nets, rtol=0, atol=0)
