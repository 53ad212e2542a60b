"""check() and the first step of fit(): everything is checked, nothing moves, nothing runs twice."""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn

import multifit
from multifit import LossSpec, MetricSpec, MultiEstimator, SpecError, TrainerSpec
from tests.common.compare import assert_unchanged, snapshot
from tests.common.data import in_batches, two_head_arrays
from tests.common.grids import two_settings
from tests.common.nets import MakesLayer, hybridized, normed_heads, two_heads
from tests.common.specs import CE, one_loss_spec, two_head_spec


def loader(arrays: dict[str, np.ndarray]) -> Any:
    return gluon.data.DataLoader(gluon.data.ArrayDataset(*arrays.values()), batch_size=8, shuffle=True)


def gradients(net: Any) -> list[np.ndarray]:
    return [g.asnumpy() for p in net.collect_params().values() if p.grad_req != "null" for g in p.list_grad()]


TRAINERS = {"body": TrainerSpec("body.*", "sgd"), "heads": TrainerSpec("(?!body).*", "sgd")}


@two_settings
def test_check_moves_nothing(devices: list, hybrid: bool, arrays: Any) -> None:
    """Though it calls blocks one by one to list them; nor does it draw random numbers."""
    net = hybridized(normed_heads(), hybrid)
    estimator = MultiEstimator(net, two_head_spec(), TRAINERS if hybrid else None, context=devices)
    estimator.fit(loader(arrays), loader(arrays), epochs=1)
    parameters, grads = snapshot(net), gradients(net)
    figures = estimator.figures(), estimator.figures("evaluate")
    random.seed(3), np.random.seed(3)
    plan = estimator.check(loader(arrays), loader(arrays), layers=True)
    after = random.random(), np.random.rand()
    random.seed(3), np.random.seed(3)
    assert after == (random.random(), np.random.rand())
    assert "BatchNorm" in {layer[1] for layer in plan.layers} and net._active == hybrid
    assert_unchanged(net, parameters)
    assert all(figures) and (estimator.figures(), estimator.figures("evaluate")) == figures
    np.testing.assert_equal(gradients(net), grads)


@pytest.mark.parametrize("layers", [False, True])
def test_training_after_a_check_is_as_without(batches: Any, layers: bool) -> None:
    runs = []
    for checked in (False, True):
        mx.random.seed(1)
        net = two_heads("hybridized")
        net.initialize()
        net(mx.nd.array(batches[0][0]))  # shapes are known: a check draws no random numbers for weights
        estimator = MultiEstimator(net, two_head_spec())
        if checked:
            estimator.check(batches, batches, layers=layers)
        runs.append((dict(estimator.fit(batches, batches, epochs=2)), net))
        assert "one graph" in str(estimator.plan)
    assert runs[0][0] == runs[1][0]
    assert_unchanged(runs[1][1], snapshot(runs[0][1]))


def test_a_loader_that_fails_is_named(batches: Any) -> None:
    def broken() -> Iterator[Any]:
        raise OSError("the disk is gone")
        yield

    with pytest.raises(OSError, match="the disk is gone") as raised:
        MultiEstimator(two_heads(), two_head_spec()).check(broken())
    assert raised.value.__notes__ == ["raised in data"]


def test_check_leaves_no_figures_behind_and_returns_the_plan(batches: Any) -> None:
    metric = mx.metric.CustomMetric(lambda label, pred: 1.0)
    estimator = MultiEstimator(
        two_heads(), two_head_spec(metrics={"one": MetricSpec(metric, "digit", "digit")})
    )
    assert estimator.plan is None
    plan = estimator.check(batches, batches)
    assert plan is estimator.plan and isinstance(plan, multifit.Plan)
    assert metric.num_inst == 0
    assert estimator.figures("train") == estimator.figures("evaluate") == {}
    assert (estimator.state.step, estimator.state.samples, estimator.history.epochs) == (0, 0, 0)


def test_the_plan_shows_everything(batches: Any) -> None:
    def two(size: Any, label: Any) -> Any:
        loss = (size - label) ** 2
        return loss, loss * 2

    spread = LossSpec(two, "size", "size", weight=0.5, returns=["a", "b"], minimize="b")
    trainers = {
        "body": TrainerSpec("body.*", "sgd", {"learning_rate": 0.1}, clip_norm=2.0),
        "heads": TrainerSpec("(digit|size).*"),
    }
    spec = two_head_spec(losses={"digit": CE, "spread": spread})
    estimator = MultiEstimator(two_heads("hybridized"), spec, trainers, frozen=["size.bias"])
    shown = " ".join(str(estimator.check(batches, batches)).split())  # the columns' widths are not the point
    for line in [
        "batches of 8 on cpu(0)",
        "input image (8, 6) float32 net",
        "output digit (8, 3) float32 digit, accuracy",
        "output size (8, 1) float32 spread",
        "label digit (8,) float32 digit, accuracy",
        "loss digit (8,) float32 1 x SoftmaxCrossEntropyLoss(outputs.digit, labels.digit) / samples",
        "loss spread (8, 1) float32 0.5 x two(outputs.size, labels.size) / samples",
        "part spread.a (8, 1) float32 measured",
        "part spread.b (8, 1) float32 minimized",
        "metric accuracy a number Accuracy(outputs.digit, labels.digit)",
        "trainer body 2 parameters, 56 numbers SGD, learning rate 0.1, gradients clipped to norm 2: "
        "body.weight, body.bias",
        "trainer heads 3 parameters, 35 numbers Adam, learning rate 0.001: "
        "digit.weight, digit.bias, size.weight",
        "frozen 1 parameter size.bias",
        "evaluating and predicting",
    ]:
        assert line in shown, f"{line}\n\n{shown}"


def test_a_batch_is_read_once_and_run_once_more_for_the_check(batches: Any) -> None:
    read: list[int] = []

    class Loader:
        def __iter__(self) -> Iterator[Any]:
            for i, batch in enumerate(batches):
                read.append(i)
                yield batch

    net = two_heads()
    estimator = MultiEstimator(net, two_head_spec())
    estimator.fit(Loader(), epochs=2)
    assert read == [0, 1, 2] * 2
    assert net.calls == [(8, 6), *[(8, 6), (8, 6), (4, 6)] * 2]
    estimator.fit(batches, batches, epochs=2)
    assert len(net.calls) == 1 + 2 * 3 + 2 + 4 * 3


# ---- layers ------------------------------------------------------------------------------------------------


def layers(estimator: MultiEstimator, batches: Any) -> dict[str, tuple[str, str, int]]:
    return {each.name: each[1:] for each in estimator.check(batches, layers=True).layers}


@two_settings
def test_each_block_is_listed(devices: Any, hybrid: bool, batches: Any) -> None:
    net = hybridized(two_heads("hybrid" if hybrid else "plain"), hybrid)
    estimator = MultiEstimator(net, two_head_spec(), context=devices)
    size = len(batches[0][0]) // len(devices)  # of one device's share
    assert layers(estimator, batches) == {
        "body": ("Dense", f"({size}, 8) float32", 56),
        "body.act": ("Activation", f"({size}, 8) float32", 0),
        "digit": ("Dense", f"({size}, 3) float32", 27),
        "size": ("Dense", f"({size}, 1) float32", 9),
    }
    assert estimator.check(batches).layers == ()


class Odd(mx.gluon.Block):
    """Calls one block twice, another that shares its parameters, one that returns a list, and one never."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Dense(4, in_units=4)
        self.same = nn.Dense(4, in_units=4, params=self.first.params)
        self.pair, self.idle = nn.Lambda(lambda x: [x, x * 2]), nn.Dense(2, in_units=3)
        self.scale = self.params.get("scale", shape=(1,))

    def forward(self, x: Any) -> Any:
        first, second = self.pair(self.same(self.first(self.first(x))))
        return (first + second) * self.scale.data()


def test_unusual_blocks() -> None:
    estimator = MultiEstimator(Odd(), one_loss_spec(CE), initializer=mx.init.One(), frozen=["idle.*"])
    batch = np.ones((2, 4), "float32"), np.zeros(2, "float32")
    array = "(2, 4) float32"
    assert layers(estimator, [batch]) == {
        "net": ("Odd", array, 1),
        "first": ("Dense", array, 20),
        "same": ("Dense", array, 0),
        "pair": ("Lambda", f"[{array}, {array}]", 0),
        "idle": ("Dense", "-", 8),
    }
    text = estimator.check([batch], layers=True).to_text(100)
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("in all")] == ["29"]
    assert layers(MultiEstimator(nn.Dense(3), CE), [batch]) == {"net": ("Dense", "(2, 3) float32", 15)}
    data = mx.sym.var("data")
    net = mx.gluon.SymbolBlock(mx.sym.FullyConnected(data, num_hidden=3, name="fc"), data)
    assert layers(MultiEstimator(net, CE), [batch]) == {"net": ("SymbolBlock", "(2, 3) float32", 15)}


def test_a_block_that_fails_leaves_the_net_as_it_was(estimator: MultiEstimator, batches: Any) -> None:
    estimator.check(batches)
    estimator.net.form = lambda *outputs: 1 / 0
    with pytest.raises(ZeroDivisionError):
        estimator.check(batches, layers=True)
    assert not estimator.net._forward_hooks


# ---- nets that are changed ---------------------------------------------------------------------------------


def test_a_net_with_other_parameters_is_refused(estimator: MultiEstimator, batches: Any) -> None:
    estimator.fit(batches, batches, epochs=1)
    net = estimator.net
    net.more, net.size = nn.Dense(2), nn.Dense(1, in_units=8, use_bias=False)
    net.initialize()
    moved = {name: p.data().asnumpy() for name, p in estimator.parameters.items()}
    message = 'made; replaced: "size.weight"; added: "more.weight", "more.bias"; removed: "size.bias"; make a'
    for call in (partial(estimator.fit, epochs=1), estimator.check, estimator.evaluate, estimator.predict):
        with pytest.raises(SpecError, match=message):
            call(batches)
    for parameter, before in moved.items():
        np.testing.assert_array_equal(estimator.parameters[parameter].data().asnumpy(), before, parameter)


@pytest.mark.parametrize("kind", ["plain", "hybridized", "static"])
def test_new_values_in_the_same_parameters_are_trained(kind: str, batches: Any, tmp_path: Path) -> None:
    net = two_heads("plain" if kind == "static" else kind)
    if kind == "static":  # MXNet would go on writing gradients to arrays that were replaced
        net.hybridize(static_alloc=True, static_shape=True)
        batches = batches[:1] * 3
    net.alias = net.body  # a layer may have several names
    estimator = MultiEstimator(net, two_head_spec(), TrainerSpec(".*", "sgd"), frozen=["digit.bias"])
    estimator.fit(batches, epochs=1)
    net.save_parameters(str(tmp_path / "net"))
    for change in (
        lambda: net.initialize(mx.init.Xavier(), force_reinit=True),
        lambda: net.load_parameters(str(tmp_path / "net")),
        lambda: net.collect_params().reset_ctx(mx.cpu()),
        lambda: net.cast("float32"),
        lambda: net.hybridize(),
        lambda: net.body.collect_params().setattr("grad_req", "null"),
    ):
        change()
        before = snapshot(net)
        estimator.fit(batches, epochs=1)
        with pytest.raises(AssertionError):
            assert_unchanged(net, before)


@pytest.mark.parametrize("hybridize", [True, False])
def test_layers_made_in_the_first_forward_pass_are_evaluated_but_not_trained(hybridize: bool) -> None:
    arrays = two_head_arrays(16)
    data = in_batches([arrays["image"], arrays["digit"]])
    evaluated, trained = nets = [hybridized(MakesLayer(), hybridize) for _ in range(2)]
    for net in nets:
        net.initialize()
    estimator = MultiEstimator(evaluated, one_loss_spec(CE))
    assert estimator.evaluate(data) == estimator.evaluate(data)
    evaluated.another = nn.Dense(2, in_units=2)
    with pytest.raises(SpecError, match='made; added: "another.weight", "another.bias"; make a new'):
        estimator.predict(data)
    with pytest.raises(SpecError, match='pass has made "made.weight", "made.bias", which no trainer updates'):
        MultiEstimator(trained, one_loss_spec(CE)).fit(data, epochs=1)
    MultiEstimator(trained, one_loss_spec(CE)).fit(data, epochs=1)  # the layer is there by now
