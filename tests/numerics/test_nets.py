"""Nets of every kind, on any number of devices, with batches of any size, train as in a hand-written loop."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.gluon.graph import lower as precisions
from tests.common.compare import ATOL, RTOL, assert_same_parameters, twins
from tests.common.data import digit_batches
from tests.common.grids import in_turn, pairwise, plain_or_hybrid, two_settings

from tests.common.hand_loop import ADAM, SGD, SILENT, SIZES, assert_trains_as_by_hand  # isort: skip
from tests.common.hand_loop import check_by_hand, train, train_by_hand, trainer_of  # isort: skip
from tests.common.nets import Heads, PlainHeads, hybridized, sequential
from tests.common.shared_nets import two_heads, two_losses
from tests.common.specs import BCE, CE, digit_spec

import mxnet as mx  # isort: skip
from mxnet import gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip


class Toolkits(Heads):
    """A net of a toolkit, whose forward() looks at an array."""

    __module__ = "gluoncv.model_zoo"

    def forward(self, x: Any) -> Any:
        assert x.shape[1] == 10  # a symbol has no shape
        return super().forward(x)


def of_layers(net: Any, x: Any, digit: Any, parity: Any) -> Any:
    """The loss of each sample, of the layers of a net whatever its forward returns."""
    features = net.body(x)
    return CE(net.digit(features), digit) + 0.5 * BCE(net.parity(features), parity)


def returning(form: Callable[..., Any], outputs: Any) -> Callable[[bool], dict[str, Any]]:
    """Return a case of a net whose forward returns its heads in a structure."""
    return lambda hybrid: {
        "make": lambda: (Heads if hybrid else PlainHeads)(form, digit=5, parity=1),
        "spec": digit_spec(outputs=outputs),
    }


def of_sizes(*sizes: int, **more: Any) -> Callable[[bool], dict[str, Any]]:
    return lambda hybrid: {"make": two_heads, "batches": digit_batches(sizes), **more}


ROWS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "a tuple": returning(lambda d, p: (d, p), ("digit", "parity")),
    "a list": returning(lambda d, p: [d, p], ("digit", "parity")),
    "nested": returning(lambda d, p: (d, [p, (d * 2, p)]), ("digit", ("parity", ...))),
    "None where there is nothing to return": returning(
        lambda d, p: (d, p, None), ("digit", "parity", ...)
    ),
    "a dict": returning(lambda d, p: {"parity": p, "more": d, "digit": d}, ("digit", "parity", ...)),
    "a forward that cannot be traced": lambda hybrid: {"make": lambda: Toolkits(digit=5, parity=1)},
    # SGD, to which, unlike to Adam, the scale of a gradient matters
    "one sample on two devices": of_sizes(*[1] * 5),
    "a last batch of one": of_sizes(8, 8, 1, 8, 8, 1),
    "every size": of_sizes(*range(1, 11)),
    "decay": of_sizes(*[9] * 8, options={**SGD, "wd": 1e-3}),
}  # fmt: skip


@pairwise("case", ROWS)
def test_a_net_trains_as_by_hand(case: str, devices: list, hybrid: bool) -> None:
    row = {"spec": digit_spec(), "batches": digit_batches(SIZES), **ROWS[case](hybrid)}
    assert_trains_as_by_hand(objective=of_layers, devices=devices, hybrid=hybrid, **row)


def test_three_devices_of_which_one_never_gets_a_sample() -> None:
    devices = [mx.cpu(i) for i in range(3)]
    batches = digit_batches([2] * 5)
    assert_trains_as_by_hand(two_heads, digit_spec(), batches, two_losses, devices, False, "adam", ADAM)


def test_other_calls_between_the_steps_change_nothing() -> None:
    """Several fits continue each other; checks, evaluations and predictions change nothing."""
    batches = digit_batches([16] * 12)
    hand, net = twins(two_heads, batches[0][0])
    train_by_hand(hand, trainer_of(hand, "adam", ADAM), batches, two_losses)
    estimator = train(hybridized(net), digit_spec(), batches[:4], None, TrainerSpec(".*", "adam", ADAM))
    estimator.check(batches[:1], batches[1:2])
    estimator.evaluate(batches, event_handlers=SILENT)
    estimator.fit(batches[4:9], batches[:3], batches=5, event_handlers=SILENT)
    estimator.predict(batches[0][0])
    estimator.fit(batches[9:], epochs=1, event_handlers=SILENT)
    assert_same_parameters(net, hand)


class Counted(Heads):
    """Has Python of its own around what Gluon traces."""

    def __init__(self, calls: list[int]) -> None:
        super().__init__(digit=5, parity=1)
        self.calls = calls

    def forward(self, x: Any) -> Any:
        self.calls.append(len(x))
        return super().forward(x)


def hooked(calls: list[int]) -> Any:
    net = Heads(digit=5, parity=1)
    net.register_forward_hook(lambda block, inputs, outputs: calls.append(len(inputs[0])))
    return net


@pytest.mark.parametrize("kind", [Counted, hooked])
@two_settings
def test_a_forward_of_its_own_and_hooks_are_called_for_every_batch(kind, devices, hybrid) -> None:
    calls: list[int] = []
    batches = digit_batches(SIZES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gluon's, of hooks in a hybridized net
        assert_trains_as_by_hand(lambda: kind(calls), digit_spec(), batches, of_layers, devices, hybrid)
    # `twins` calls each net with two samples, and the check with those of the first device; the hand-written
    # loop calls the layers
    assert sum(calls) - 2 * 2 - SIZES[0] // len(devices) == sum(SIZES)


@two_settings
def test_a_net_that_was_exported_and_imported(devices: list, hybrid: bool, tmp_path: Path) -> None:
    """Gluon's SymbolBlock: its parameters bear the flat names of the file, by which they are chosen."""
    batches = digit_batches(SIZES)
    hand, _ = twins(lambda: hybridized(Heads(digit=5, parity=1)), batches[0][0])
    hand(nd.array(batches[0][0]))
    hand.export(str(tmp_path / "net"))
    files = str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params")
    net = hybridized(gluon.SymbolBlock.imports(*files), hybrid)
    heads = [parameter for head in (hand.digit, hand.parity) for parameter in head.collect_params().values()]
    before = hand.body.weight.data().asnumpy()

    train_by_hand(hand, gluon.Trainer(heads, "sgd", SGD), batches, two_losses)
    trainer = TrainerSpec("(digit|parity)_.*", "sgd", SGD)
    estimator = MultiEstimator(net, digit_spec(), trainer, devices, frozen=["body_.*"])
    estimator.fit(batches, epochs=1, event_handlers=SILENT)
    imported, own = net.collect_params(), hand.collect_params()
    assert {*imported} == {*own} == {f"{layer}_{kind}" for layer in ("body", "digit", "parity")
                                     for kind in ("weight", "bias")}  # fmt: skip
    for name, parameter in own.items():
        for data in imported[name].list_data():
            np.testing.assert_allclose(data.asnumpy(), parameter.data().asnumpy(), RTOL, ATOL, err_msg=name)
    np.testing.assert_array_equal(imported["body_weight"].data(devices[0]).asnumpy(), before)


def noisy() -> Heads:
    """Return a net with BatchNorm and Dropout: running statistics and random numbers."""
    layers = [nn.Dense(16), nn.BatchNorm(), nn.Activation("relu"), nn.Dropout(0.4)]
    body = sequential(*layers, nn.Dense(8), nn.BatchNorm(scale=False), nn.Dropout(0.2))
    return Heads(lambda digit: digit, body=body, digit=5)


OF_DIGITS = {"inputs": ["x"], "outputs": ["digit"], "labels": ["digit"], "losses": {"digit": CE}}


@pytest.mark.parametrize("deferred", [False, True], ids=["shapes known", "shapes deferred"])
@plain_or_hybrid
def test_running_statistics_and_dropout(deferred: bool, hybrid: bool) -> None:
    """Random numbers are drawn in the loop's order, also those of parameters whose shapes are deferred.

    The check of the first batch has drawn some before.
    """
    batches = [batch[:2] for batch in digit_batches([16] * 5 + [7])]
    hand, net = (noisy(), noisy()) if deferred else twins(noisy, batches[0][0])

    def by_hand() -> None:
        check_by_hand(hand, batches[0][0])
        train_by_hand(hand, trainer_of(hand), batches, lambda net, x, digit: CE(net(x), digit))

    for block, run in ((hand, by_hand), (net, lambda: train(net, TaskSpec(**OF_DIGITS), batches))):
        hybridized(block, hybrid)
        mx.random.seed(11)
        if deferred:
            block.initialize(mx.init.Xavier())
        run()
    assert_same_parameters(net, hand)
    assert any("running" in name for name in net._collect_params_with_prefix())


def reader() -> Any:
    """Return a net that reads sequences of any length."""
    return sequential(gluon.rnn.LSTM(6, layout="NTC"), nn.Dense(4, flatten=False))


@in_turn("lengths", [range(4, 0, -1), range(1, 41)])
def test_sequences_of_many_lengths(lengths: range, devices: list, hybrid: bool) -> None:
    random = np.random.RandomState(1)
    shapes = [(4 - i % 3, lengths[i % len(lengths)]) for i in range(len(lengths) + 5)]
    batches = [
        (random.randn(*s, 3).astype("float32"), random.randint(0, 4, s).astype("float32")) for s in shapes
    ]
    accuracy = mx.metric.Accuracy(axis=-1)

    def by_token(net: Any, x: Any, y: Any) -> Any:
        out = net(x)
        accuracy.update([y], [out])
        return CE(out, y)

    metrics = {"acc": MetricSpec(mx.metric.Accuracy(axis=-1), outputs="y", labels="y")}
    spec = TaskSpec(inputs=["x"], outputs=["y"], labels=["y"], losses={"y": CE}, metrics=metrics)
    estimator = assert_trains_as_by_hand(reader, spec, batches, by_token, devices, hybrid)
    assert estimator.history["train_acc"] == pytest.approx([accuracy.get()[1]], abs=0.01)  # but for near ties


def test_a_graph_that_fails_says_where() -> None:
    # a body that takes batches of four only
    body = nn.HybridLambda(lambda F, x: F.reshape(x, (4, 10)))
    net = hybridized(Heads(lambda digit: digit, body=body, digit=5))
    batches = [batch[:2] for batch in digit_batches([4, 4, 4, 3])]
    with pytest.raises(mx.MXNetError, match=r"net.*x .3, 10. float32"):
        train(net, TaskSpec(**OF_DIGITS), batches)


def doubles() -> Any:
    net = two_heads()
    net.cast("float64")
    return net


@two_settings
def test_nets_of_float64_keep_its_precision(devices: list, hybrid: bool) -> None:
    def scalar(out: Any, y: Any) -> Any:
        return nd.mean(nd.square(out.reshape(-1) - y))

    def objective(net: Any, x: Any, digit: Any, parity: Any) -> Any:
        digits, parities = net(x)
        return CE(digits, digit) + 0.3 * BCE(parities, parity) + 0.7 * scalar(parities, parity)

    # Gluon's step() divides by the size in float32, which is exact for powers of two
    batches = digit_batches([8, 8, 8, 4, 8, 1])
    hand, net = twins(doubles, batches[0][0].astype("float64"))
    exact = [tuple(array.astype("float64") for array in batch) for batch in batches]
    train_by_hand(hand, trainer_of(hand), exact, objective)
    scalars = LossSpec(scalar, "parity", "parity", 0.7)
    losses = {"digit": CE, "parity": LossSpec(BCE, weight=0.3), "scalar": scalars}
    metrics = {
        "top": MetricSpec(mx.metric.TopKAccuracy(2), "digit", "digit"),
        "rmse": MetricSpec(mx.metric.RMSE(), "parity", "parity"),
        "error": MetricSpec(lambda y, out: float(np.abs(out[:, 0] - y).mean()), "parity", "parity"),
    }
    estimator = train(hybridized(net, hybrid), digit_spec(losses=losses, metrics=metrics), batches, devices)
    assert_same_parameters(net, hand, 1e-13, 1e-13)
    assert net.body.weight.data(devices[0]).dtype == np.float64
    assert np.isfinite([estimator.history.last[f"train_{name}"] for name in metrics]).all()
    assert estimator.predict(batches[0][0])["digit"].dtype == np.float64


def test_bfloat16_needs_float32_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precisions, "cpu_supports_bfloat16", lambda: True)
    estimator = MultiEstimator(hybridized(doubles()), digit_spec(), precision="bfloat16")
    with pytest.raises(ValueError, match='precision is "bfloat16".*parameters are float64; call net.cast'):
        estimator.check(digit_batches([8]))
