"""Methods that compare the gradients of shared parameters: exact, with a backward pass for each task."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import (
    CheckpointHandler,
    Every,
    GradientAccumulation,
    GradientConflicts,
    HandlerError,
    LossSpec,
    MultiEstimator,
    SpecError,
    TaskSpec,
    TrainerError,
    TrainerSpec,
)
from multifit.balance import MGDA, GradNorm, PCGrad, Sum, UPGrad
from multifit.balance.weighing import weigh_gradients
from tests.common.compare import (
    assert_same_parameters,
    assert_unchanged,
    copy_parameters,
    snapshot,
    twins,
)
from tests.common.data import digit_batches
from tests.common.grids import TWO
from tests.common.hand_loop import SGD, SILENT, SIZES
from tests.common.nets import Heads, hybridized, sequential
from tests.common.specs import BCE, CE, L2, digit_spec

import mxnet as mx  # isort: skip
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


def normed() -> Any:
    return Heads(body=sequential(nn.Dense(8, in_units=10), nn.BatchNorm(in_channels=8)), digit=5, parity=1)


def test_running_statistics_count_each_batch_once() -> None:
    """MXNet counts them in the backward pass, of which there is one for each task."""
    plain, cut = twins(normed, BATCHES[0][0])
    for net, method in ((plain, None), (cut, Sum(on="parameters"))):
        fitted(hybridized(net), method, spec=digit_spec())
    assert_same_parameters(cut, plain, rtol=1e-4, atol=1e-5)


def test_conflicts_are_those_of_a_net_that_evaluates() -> None:
    """Also where a gradient passes a layer that is another function of its inputs then."""

    def norms(global_stats: bool) -> list[float]:
        norm = nn.BatchNorm(in_channels=8, momentum=1.0, use_global_stats=global_stats)
        net = Heads(body=sequential(nn.Dense(8, in_units=10), norm), digit=5, parity=1)
        net.initialize(mx.init.One())
        still = TrainerSpec(".*", "sgd", {"learning_rate": 1e-20})
        estimator = MultiEstimator(hybridized(net), digit_spec(), still)
        conflicts = GradientConflicts(100, on="body.*")
        history = estimator.fit(BATCHES, epochs=1, event_handlers=[*SILENT, conflicts])
        return [history[f"train_gradnorm_{task}"][0] for task in ("digit", "parity")]

    assert norms(False) == pytest.approx(norms(True), rel=1e-5)


METHODS_ADDED = [
    UPGrad(on="parameters"),
    PCGrad(on="parameters"),
    GradNorm(on="body.*"),
    MGDA(on="parameters", every=2),
]
# fmt: off
ADDED: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "by a handler": ({}, [GradientAccumulation(2)]),
    "by the trainer": ({"every": 2, "accumulate": True}, []),
}
# fmt: on


def random_batches(size: int, count: int) -> list[Any]:
    random = np.random.RandomState(0)
    x, labels = random.randn(48, 6).astype("float32"), random.randint(0, 5, 48).astype("float32")
    columns = (x, labels, (labels % 2).reshape(-1, 1))
    return [tuple(c[i * size : (i + 1) * size] for c in columns) for i in range(count)]


@pytest.mark.parametrize("devices", [None, TWO], ids=["one device", "two"])
@pytest.mark.parametrize("method", METHODS_ADDED, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("how", ADDED)
def test_batches_that_are_added_up_are_one_large_batch(how: str, method: Any, devices: Any) -> None:
    options, handlers = ADDED[how]
    whole, parts = twins(Nested, random_batches(4, 1)[0][0])
    histories = []
    for net, size, declared, added in ((whole, 8, {}, []), (parts, 4, options, handlers)):
        trainers = TrainerSpec(".*", "sgd", SGD, **declared)
        estimator = MultiEstimator(hybridized(net), spec(), trainers, devices, balance=method)
        for _ in range(2):
            estimator.fit(random_batches(size, 48 // size), epochs=1, event_handlers=[*SILENT, *added])
        histories.append(estimator.history)
    assert_same_parameters(parts, whole, rtol=1e-4, atol=1e-5)
    for figure in ("weight_digit", "cosine_digit_size"):
        assert histories[1][f"train_{figure}"] == pytest.approx(histories[0][f"train_{figure}"], rel=1e-3)


def test_a_device_that_a_batch_leaves_without_a_sample_adds_what_it_has() -> None:
    one, two = twins(Nested, random_batches(4, 1)[0][0])
    columns = random_batches(10, 1)[0]
    data = [tuple(column[i:j] for column in columns) for i, j in ((0, 4), (4, 5), (5, 6), (6, 10))]
    for net, devices in ((one, None), (two, TWO)):
        trainers = TrainerSpec(".*", "sgd", SGD, every=2, accumulate=True)
        estimator = MultiEstimator(
            hybridized(net), spec(), trainers, devices, balance=UPGrad(on="parameters")
        )
        estimator.fit(data, epochs=2, event_handlers=SILENT)
    assert_same_parameters(two, one, rtol=1e-4, atol=1e-5)


class CutsPower:
    """Ends a fit after a checkpoint of 9 batches, of which one waits."""

    def batch_end(self, estimator: Any, **facts: Any) -> None:
        if estimator.state.step == 10:
            raise RuntimeError


@pytest.mark.parametrize(
    ("how", "method", "devices"),
    [
        ("by a handler", PCGrad(on="parameters"), None),
        ("by a handler", UPGrad(on="parameters", every=2), TWO),
        ("by the trainer", UPGrad(on="parameters"), None),
    ],
    ids=["handler", "handler, two devices", "trainer"],
)
def test_a_fit_is_resumed_amid_the_batches_of_an_update(
    how: str, method: Any, devices: Any, tmp_path: Path
) -> None:
    options, handlers = ADDED[how]

    def run(net: Any, folder: str, *further: Any, **resume: Any) -> MultiEstimator:
        trainers = TrainerSpec(".*", "sgd", SGD, **options)
        estimator = MultiEstimator(hybridized(net), spec(), trainers, devices, balance=method)
        used = [copy.copy(handler) for handler in handlers]
        saved = CheckpointHandler(tmp_path / folder, Every(3, "batch"))
        estimator.fit(
            random_batches(4, 11), epochs=2, event_handlers=[*SILENT, *used, saved, *further], **resume
        )
        return estimator

    whole, parts = twins(Nested, random_batches(4, 1)[0][0])
    through = run(whole, "through")
    with pytest.raises(HandlerError):
        run(parts, "parts", CutsPower())
    resumed = run(Nested(), "parts", resume=tmp_path / "parts")
    assert_unchanged(resumed.net, snapshot(through.net))
    assert dict(resumed.history) == dict(through.history)


def test_batches_left_over_by_a_handler_are_forgotten() -> None:
    once, again = twins(Nested, random_batches(4, 1)[0][0])
    estimators = []
    for net, counts in ((once, [4, 2]), (again, [5, 2])):
        trainers = TrainerSpec(".*", "sgd", SGD)
        estimators.append(MultiEstimator(hybridized(net), spec(), trainers, balance=UPGrad(on="parameters")))
        for count in counts:
            handlers = [*SILENT, GradientAccumulation(2)]
            estimators[-1].fit(random_batches(4, count), epochs=1, event_handlers=handlers)
    assert_same_parameters(again, once, rtol=0, atol=0)


def test_trainers_that_add_up_different_batches_are_refused() -> None:
    net, _ = twins(Nested, BATCHES[0][0])
    trainers = {
        "body": TrainerSpec("body.*", every=2, accumulate=True),
        "pair": TrainerSpec("pair.*", every=3, accumulate=True),
        "heads": TrainerSpec("(digit|parity|size).*"),
    }
    estimator = MultiEstimator(hybridized(net), spec(), trainers, balance=UPGrad(on="parameters"))
    before = snapshot(net)
    with pytest.raises(TrainerError, match='the trainers "body", "pair" move what tasks share'):
        estimator.fit(BATCHES, epochs=1, event_handlers=SILENT)
    np.testing.assert_equal(snapshot(net), before)


class Skipping(gluon.HybridBlock):
    """Two heads on features, and on what these are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.neck = nn.Dense(6, in_units=7, activation="tanh")
        self.digit, self.parity = nn.Dense(5, in_units=13), nn.Dense(1, in_units=13)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        features = self.neck(x)
        return self.digit(F.concat(features, x)), self.parity(F.concat(x, features))


class Pretrained(gluon.HybridBlock):
    """The same behind a layer that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.back, self.rest = nn.Dense(7, in_units=10, activation="tanh"), Skipping()

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.rest(self.back(x))


@pytest.mark.parametrize("accumulate", [False, True], ids=["", "accumulated"])
@pytest.mark.parametrize("on", ["features", "parameters", ".*weight"])
def test_frozen_parameters_are_not_compared(on: str, accumulate: bool) -> None:
    """However a layer is frozen, weights and figures are those of training on what it computes."""
    nets = [*twins(Pretrained, BATCHES[0][0]), Skipping()]
    nets[2].initialize()
    copy_parameters(nets[0].rest, nets[2])
    nets[1].back.collect_params().setattr("grad_req", "null")
    made = [(nets[0].back(nd.array(x)).asnumpy(), *labels) for x, *labels in BATCHES]
    results = []
    for net, batches, frozen in zip(nets, (BATCHES, BATCHES, made), (["back.*"], [], [])):
        trainers = TrainerSpec(".*", "sgd", SGD, every=1 + accumulate, accumulate=accumulate)
        estimator = MultiEstimator(
            hybridized(net), digit_spec(), trainers, frozen=frozen, balance=MGDA(on=on)
        )
        results.append(estimator.fit(batches, epochs=2, event_handlers=SILENT))
    for history in results[1:]:
        for figure in results[0]:
            np.testing.assert_allclose(history[figure], results[0][figure], rtol=1e-5, err_msg=figure)


@pytest.mark.parametrize("on", ["features", "parameters"])
def test_a_body_that_is_frozen_has_nothing_to_balance(on: str) -> None:
    estimator = MultiEstimator(
        hybridized(Pretrained()),
        digit_spec(),
        TrainerSpec(".*", "sgd", SGD),
        frozen=["back.*", "rest.neck.*"],
        balance=UPGrad(on=on),
    )
    with pytest.raises(SpecError, match="the tasks share no parameter that is trained"):
        estimator.check(BATCHES)


def dropped() -> Any:
    return Heads(body=sequential(nn.Dense(8), nn.Dropout(0.5)), digit=5, parity=1)


def sparse() -> Any:
    return Heads(body=nn.Embedding(100, 8, sparse_grad=True), digit=5, parity=1)


class Loops(gluon.HybridBlock):
    """A body with a loop, or a branch, of MXNet's."""

    def __init__(self, loop: Any) -> None:
        super().__init__()
        self.body, self.loop = nn.Dense(8, in_units=10), loop
        self.digit, self.parity = nn.Dense(5, in_units=8), nn.Dense(1, in_units=8)

    def hybrid_forward(self, F: Any, image: Any) -> Any:
        features = self.loop(F, self.body(image))
        return self.digit(features), self.parity(features)


def foreach(F: Any, x: Any) -> Any:
    return F.contrib.foreach(lambda row, state: (F.tanh(row), state), x, F.zeros((1,)))[0]


def while_loop(F: Any, x: Any) -> Any:
    def step(count: Any, x: Any) -> Any:
        return None, (count + 1, F.tanh(x))

    return F.contrib.while_loop(lambda count, _: count < 2, step, (F.zeros((1,)), x), max_iterations=3)[1][1]


def branch(F: Any, x: Any) -> Any:
    return F.contrib.cond(F.sum(x) > 0, lambda: F.tanh(x), lambda: x)


PASSED_ONCE = 'MXNet passes F.contrib.foreach, while_loop and cond back once only; use on="features"'
ERRORS: dict[str, tuple[Any, str, Any, Any, str]] = {
    "foreach": (lambda: Loops(foreach), "parameters", digit_spec, [], PASSED_ONCE),
    "while_loop": (lambda: Loops(while_loop), "parameters", digit_spec, [], PASSED_ONCE),
    "cond": (lambda: Loops(branch), "body.*", digit_spec, [], PASSED_ONCE),
    "dropout": (
        dropped, "parameters", digit_spec, [],
        'is the identity in every backward pass of MXNet\'s but the first; use on="features", or in place of',
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
