"""Nets of every kind train as a hand-written loop trains them."""

from __future__ import annotations

import warnings
from typing import Any, Callable

import numpy as np
import pytest

from multifit import LossSpec, MetricSpec, TaskSpec, TrainerSpec, UserCodeError

import mxnet as mx  # isort: skip
from mxnet import gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

CE, BCE, L2 = (
    gluon.loss.SoftmaxCrossEntropyLoss(),
    gluon.loss.SigmoidBinaryCrossEntropyLoss(),
    gluon.loss.L2Loss(),
)
SGD = {"learning_rate": 0.05, "momentum": 0.9}
LOSSES = {"digit": CE, "parity": LossSpec(BCE, weight=0.5)}


def spec(outputs: Any = ("digit", "parity"), **options: Any) -> TaskSpec:
    return TaskSpec(inputs=["x"], outputs=outputs, labels=["digit", "parity"], losses=LOSSES, **options)


class Plain(gluon.Block):
    """Python at every forward pass."""

    def __init__(self, form: Callable[..., Any] = lambda digit, parity: (digit, parity)) -> None:
        super().__init__()
        self.form = form
        self.body, self.digit, self.parity = nn.Dense(16, activation="relu"), nn.Dense(5), nn.Dense(1)

    def forward(self, x: Any) -> Any:
        hidden = self.body(x)
        return self.form(self.digit(hidden), self.parity(hidden))


class Hybrid(gluon.HybridBlock):
    """The same, that can be hybridized."""

    def __init__(self, form: Callable[..., Any] = lambda digit, parity: (digit, parity)) -> None:
        super().__init__()
        self.form = form
        self.body, self.digit, self.parity = nn.Dense(16, activation="relu"), nn.Dense(5), nn.Dense(1)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        hidden = self.body(x)
        return self.form(self.digit(hidden), self.parity(hidden))


class Counted(Hybrid):
    """One with Python of its own around what Gluon traces."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, x: Any) -> Any:
        self.seen += len(x)
        return super().forward(x)


class Toolkits(Hybrid):
    """One of a toolkit, whose forward() looks at an array."""

    __module__ = "gluoncv.model_zoo"

    def forward(self, x: Any) -> Any:
        assert x.shape[1] == 10  # a symbol has no shape
        return super().forward(x)


FORMS = {
    "tuple": (lambda d, p: (d, p), ("digit", "parity")),
    "list": (lambda d, p: [d, p], ("digit", "parity")),
    "nested": (lambda d, p: (d, [p, (d * 2, p)]), ("digit", ("parity", ...))),
    "dict": (lambda d, p: {"parity": p, "more": d, "digit": d}, ("digit", "parity", ...)),
}


def compare(make: Any, hybridized: bool, devices: list, fixtures: tuple, declared: Any = None) -> Any:
    data, pair, by_hand, train, same = fixtures
    batches = data([16] * 18 + [7, 1])
    hand, ours = pair(make, batches[0][0])
    plain = Hybrid()
    plain.body, plain.digit, plain.parity = hand.body, hand.digit, hand.parity
    if hybridized:
        ours.hybridize()

    def objective(net: Any, x: Any, digit: Any, parity: Any) -> Any:
        digits, parities = plain(x)
        return CE(digits, digit) + 0.5 * BCE(parities, parity)

    by_hand(hand, [gluon.Trainer(plain.collect_params(), "sgd", SGD)], batches, objective)
    estimator = train(ours, declared or spec(), batches, devices, TrainerSpec(".*", "sgd", SGD))
    same(ours, hand)
    return estimator


@pytest.fixture
def fixtures(data: Any, pair: Any, by_hand: Any, train: Any, same: Any) -> tuple:
    return data, pair, by_hand, train, same


@pytest.mark.parametrize("kind", [Plain, Hybrid])
@pytest.mark.parametrize("form", FORMS)
def test_outputs_of_any_structure(
    form: str, kind: type, hybridized: bool, devices: list, fixtures: tuple
) -> None:
    make, outputs = FORMS[form]
    compare(lambda: kind(make), hybridized, devices, fixtures, spec(outputs))


def test_a_forward_of_its_own(hybridized: bool, devices: list, fixtures: tuple) -> None:
    nets: list[Counted] = []

    def make() -> Counted:
        nets.append(Counted())
        return nets[-1]

    compare(make, hybridized, devices, fixtures)
    assert nets[1].seen - 2 == sum([16] * 18 + [7, 1])  # `pair` calls each net with two samples


def test_a_toolkits_forward_that_cannot_be_traced(hybridized: bool, devices: list, fixtures: tuple) -> None:
    compare(Toolkits, hybridized, devices, fixtures)


class Fours(gluon.HybridBlock):
    """Takes batches of four only."""

    def __init__(self) -> None:
        super().__init__()
        self.digit = nn.Dense(5)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.digit(F.reshape(x, (4, 10)))


def test_a_graph_that_fails_says_where(hybridized: bool, data: Any, train: Any) -> None:
    net = Fours()
    if hybridized:
        net.hybridize()
    declared = TaskSpec(inputs=["x"], outputs=["digit"], labels=["digit"], losses={"digit": CE})
    batches = [batch[:2] for batch in data([4, 4, 4, 3])]
    with pytest.raises(UserCodeError, match=r"net.*x .3, 10. float32") as caught:
        train(net, declared, batches)
    assert isinstance(caught.value.__cause__, mx.MXNetError)


def test_a_forward_of_the_specs(hybridized: bool, devices: list, fixtures: tuple) -> None:
    declared = spec(forward=lambda net, slots: net(slots["x"] * 1)[::-1], outputs=("parity", "digit"))
    compare(Hybrid, hybridized, devices, fixtures, declared)


def test_hooks_are_called_for_every_batch(hybridized: bool, devices: list, fixtures: tuple) -> None:
    calls: list[int] = []

    def make() -> Any:
        net = Hybrid()
        net.register_forward_hook(lambda block, inputs, outputs: calls.append(len(inputs[0])))
        return net

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gluon's, of hooks in a hybridized net
        compare(make, hybridized, devices, fixtures)
    assert sum(calls) - 2 * 2 == sum([16] * 18 + [7, 1])  # `pair` calls each net with two samples


def test_a_symbol_block(hybridized: bool, devices: list, data: Any, by_hand: Any, train: Any) -> None:
    batches = data([16] * 18 + [7, 1])

    def make() -> Any:
        x = mx.sym.var("x")
        hidden = mx.sym.FullyConnected(x, num_hidden=8, name="body")
        heads = mx.sym.Group(
            [
                mx.sym.FullyConnected(mx.sym.relu(hidden), num_hidden=n, name=name)
                for n, name in ((5, "d"), (1, "p"))
            ]
        )
        net = gluon.SymbolBlock(heads, x)
        mx.random.seed(3)
        net.initialize(mx.init.Normal(0.3))
        net(nd.ones((2, 10)))
        return net

    hand, ours = make(), make()
    if hybridized:
        ours.hybridize()

    def objective(net: Any, x: Any, digit: Any, parity: Any) -> Any:
        digits, parities = net(x)
        return CE(digits, digit) + 0.5 * BCE(parities, parity)

    by_hand(hand, [gluon.Trainer(hand.collect_params(), "sgd", SGD)], batches, objective)
    trainers = {"body": TrainerSpec("body_.*", "sgd", SGD), "heads": TrainerSpec("[dp]_.*", "sgd", SGD)}
    train(ours, spec(), batches, devices, trainers)
    expected = {name: p.data().asnumpy() for name, p in hand.collect_params().items()}
    for name, parameter in ours.collect_params().items():
        np.testing.assert_allclose(parameter.data().asnumpy(), expected[name], rtol=2e-4, atol=2e-5)


class Noisy(gluon.HybridBlock):
    """BatchNorm and Dropout: running statistics and random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.HybridSequential()
        self.body.add(nn.Dense(16), nn.BatchNorm(), nn.Activation("relu"), nn.Dropout(0.4))
        self.body.add(nn.Dense(8), nn.BatchNorm(scale=False), nn.Dropout(0.2))
        self.digit = nn.Dense(5)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.digit(self.body(x))


@pytest.mark.parametrize("batches_of", [[16] * 20, [16] * 19 + [7]], ids=["even", "uneven"])
def test_running_statistics_and_dropout(
    batches_of: list, hybridized: bool, data: Any, pair: Any, by_hand: Any, train: Any, same: Any
) -> None:
    batches = [batch[:2] for batch in data(batches_of)]
    hand, ours = pair(Noisy, batches[0][0])
    for net in (hand, ours) if hybridized else ():
        net.hybridize()
    mx.random.seed(11)
    trainer = gluon.Trainer(hand.collect_params(), "sgd", SGD)
    by_hand(hand, [trainer], batches, lambda net, x, digit: CE(net(x), digit))
    declared = TaskSpec(inputs=["x"], outputs=["digit"], labels=["digit"], losses={"digit": CE})
    mx.random.seed(11)
    train(ours, declared, batches, None, TrainerSpec(".*", "sgd", SGD))
    same(ours, hand)
    assert any("running" in name for name in ours._collect_params_with_prefix())


def test_deferred_parameters_are_drawn_in_the_hand_written_loops_order(
    hybridized: bool, data: Any, by_hand: Any, train: Any, same: Any
) -> None:
    batches = [batch[:2] for batch in data([16] * 20)]
    hand, ours = Noisy(), Noisy()
    for net in (hand, ours) if hybridized else ():
        net.hybridize()
    mx.random.seed(11)
    hand.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(hand.collect_params(), "sgd", SGD)
    by_hand(hand, [trainer], batches, lambda net, x, digit: CE(net(x), digit))
    declared = TaskSpec(inputs=["x"], outputs=["digit"], labels=["digit"], losses={"digit": CE})
    mx.random.seed(11)
    ours.initialize(mx.init.Xavier())
    train(ours, declared, batches, None, TrainerSpec(".*", "sgd", SGD))
    same(ours, hand)


def test_a_head_that_no_loss_reaches_stays(
    hybridized: bool,
    devices: list,
    two_heads: type,
    data: Any,
    pair: Any,
    by_hand: Any,
    train: Any,
    same: Any,
) -> None:
    batches = data([16] * 18 + [7, 1])
    hand, ours = pair(two_heads, batches[0][0])
    before = ours.parity.weight.data().asnumpy()
    if hybridized:
        ours.hybridize()
    trainer = gluon.Trainer(hand.collect_params(), "sgd", SGD)
    by_hand(hand, [trainer], batches, lambda net, x, digit, parity: CE(net(x)[0], digit))
    declared = TaskSpec(
        inputs=["x"], outputs=["digit", "parity"], labels=["digit", "parity"], losses={"digit": CE},
        unused=["parity"],
    )  # fmt: skip
    train(ours, declared, batches, devices, TrainerSpec(".*", "sgd", SGD))
    same(ours, hand)
    np.testing.assert_array_equal(ours.parity.weight.data(devices[-1]).asnumpy(), before)


class Reader(gluon.HybridBlock):
    """Reads sequences of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = gluon.rnn.LSTM(6, layout="NTC"), nn.Dense(4, flatten=False)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.out(self.lstm(x))


@pytest.mark.parametrize("lengths", [range(2, 6), range(1, 41)], ids=["four lengths", "forty lengths"])
def test_sequences_of_many_lengths(
    lengths: range, hybridized: bool, devices: list, pair: Any, by_hand: Any, train: Any, same: Any
) -> None:
    rng, count = np.random.RandomState(1), max(20, len(lengths) + 5)
    shapes = [(4 - i % 3, lengths[i % len(lengths)]) for i in range(count)]
    batches = [(rng.randn(*s, 3).astype("float32"), rng.randint(0, 4, s).astype("float32")) for s in shapes]
    hand, ours = pair(Reader, batches[0][0])
    if hybridized:
        ours.hybridize()
    accuracy = mx.metric.Accuracy(axis=-1)

    def objective(net: Any, x: Any, y: Any) -> Any:
        out = net(x)
        accuracy.update([y], [out])
        return CE(out, y)

    by_hand(hand, [gluon.Trainer(hand.collect_params(), "sgd", SGD)], batches, objective)
    metrics = {"acc": MetricSpec(mx.metric.Accuracy(axis=-1), outputs="y", labels="y")}
    declared = TaskSpec(inputs=["x"], outputs=["y"], labels=["y"], losses={"y": CE}, metrics=metrics)
    estimator = train(ours, declared, batches, devices, TrainerSpec(".*", "sgd", SGD))
    same(ours, hand)
    assert estimator.history["train_acc"] == pytest.approx([accuracy.get()[1]], abs=0.01)  # but for near ties
    assert len(estimator._engine.stages["train"].graphs) <= 33
