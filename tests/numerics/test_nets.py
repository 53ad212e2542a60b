"""Nets of every kind train as in a hand-written loop."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from tests.common.compare import ATOL, RTOL, assert_same_parameters, twins
from tests.common.data import digit_batches
from tests.common.grids import pairwise, plain_or_hybrid, two_settings

from tests.common.hand_loop import SGD, SILENT, SIZES, assert_trains_as_by_hand, train  # isort: skip
from tests.common.hand_loop import check_by_hand, train_by_hand, trainer_of  # isort: skip
from tests.common.nets import Heads, PlainHeads, hybridized, sequential
from tests.common.shared_nets import two_losses
from tests.common.specs import BCE, CE, digit_spec

import mxnet as mx  # isort: skip
from mxnet import gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip


def objective(net: Any, x: Any, digit: Any, parity: Any) -> Any:
    """The loss of each sample, of the layers of a net whatever its forward returns."""
    features = net.body(x)
    return CE(net.digit(features), digit) + 0.5 * BCE(net.parity(features), parity)


def compare(make: Any, devices: list, hybrid: bool, **changes: Any) -> None:
    batches = digit_batches(SIZES)
    assert_trains_as_by_hand(make, digit_spec(**changes), batches, objective, devices, hybrid)


KINDS = ("weight", "bias")
FORMS = {
    "tuple": (lambda d, p: (d, p), ("digit", "parity")),
    "list": (lambda d, p: [d, p], ("digit", "parity")),
    "nested": (lambda d, p: (d, [p, (d * 2, p)]), ("digit", ("parity", ...))),
    "none": (lambda d, p: (d, p, None), ("digit", "parity", ...)),  # None where there is nothing to return
    "dict": (lambda d, p: {"parity": p, "more": d, "digit": d}, ("digit", "parity", ...)),
}


@pairwise("form", FORMS)
def test_outputs_of_any_structure(form: str, devices: list, hybrid: bool) -> None:
    function, outputs = FORMS[form]
    kind = Heads if hybrid else PlainHeads
    compare(lambda: kind(function, digit=5, parity=1), devices, hybrid, outputs=outputs)


class Counted(Heads):
    """Has Python of its own around what Gluon traces."""

    seen = 0

    def forward(self, x: Any) -> Any:
        self.seen += len(x)
        return super().forward(x)


@two_settings
def test_a_forward_of_its_own(devices: list, hybrid: bool) -> None:
    nets: list[Counted] = []

    def make() -> Counted:
        nets.append(Counted(digit=5, parity=1))
        return nets[-1]

    compare(make, devices, hybrid)
    # `twins` calls each net with two samples, and the check with those of the first device
    assert nets[1].seen - 2 - SIZES[0] // len(devices) == sum(SIZES)


class Toolkits(Heads):
    """A net of a toolkit, whose forward() looks at an array."""

    __module__ = "gluoncv.model_zoo"

    def forward(self, x: Any) -> Any:
        assert x.shape[1] == 10  # a symbol has no shape
        return super().forward(x)


@two_settings
def test_a_toolkits_forward_that_cannot_be_traced(devices: list, hybrid: bool) -> None:
    compare(lambda: Toolkits(digit=5, parity=1), devices, hybrid)


@two_settings
def test_hooks_are_called_for_every_batch(devices: list, hybrid: bool) -> None:
    calls: list[int] = []

    def make() -> Any:
        net = Heads(digit=5, parity=1)
        net.register_forward_hook(lambda block, inputs, outputs: calls.append(len(inputs[0])))
        return net

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gluon's, of hooks in a hybridized net
        compare(make, devices, hybrid)
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
    imported = net.collect_params()
    assert set(imported) == {f"{layer}_{kind}" for layer in ("body", "digit", "parity") for kind in KINDS}
    for name, parameter in hand.collect_params().items():
        for data in imported[name].list_data():
            np.testing.assert_allclose(data.asnumpy(), parameter.data().asnumpy(), RTOL, ATOL, err_msg=name)
    np.testing.assert_array_equal(imported["body_weight"].data(devices[0]).asnumpy(), before)


def noisy() -> Heads:
    """Return a net with BatchNorm and Dropout: running statistics and random numbers."""
    layers = [nn.Dense(16), nn.BatchNorm(), nn.Activation("relu"), nn.Dropout(0.4)]
    body = sequential(*layers, nn.Dense(8), nn.BatchNorm(scale=False), nn.Dropout(0.2))
    return Heads(lambda digit: digit, body=body, digit=5)


@pytest.mark.parametrize("deferred", [False, True], ids=["shapes known", "shapes deferred"])
@plain_or_hybrid
def test_running_statistics_and_dropout(deferred: bool, hybrid: bool) -> None:
    """Random numbers are drawn in the loop's order, also those of parameters whose shapes are deferred.

    The check of the first batch has drawn some before.
    """
    batches = [batch[:2] for batch in digit_batches([16] * 5 + [7])]
    hand, net = (noisy(), noisy()) if deferred else twins(noisy, batches[0][0])
    spec = TaskSpec(inputs=["x"], outputs=["digit"], labels=["digit"], losses={"digit": CE})

    def by_hand() -> None:
        check_by_hand(hand, batches[0][0])
        train_by_hand(hand, trainer_of(hand), batches, lambda net, x, digit: CE(net(x), digit))

    for block, run in ((hand, by_hand), (net, lambda: train(net, spec, batches))):
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


@pairwise("lengths", [range(4, 0, -1), range(1, 41)])
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
    spec = TaskSpec(inputs=["x"], outputs=["digit"], labels=["digit"], losses={"digit": CE})
    batches = [batch[:2] for batch in digit_batches([4, 4, 4, 3])]
    with pytest.raises(mx.MXNetError, match=r"net.*x .3, 10. float32"):
        train(net, spec, batches)
