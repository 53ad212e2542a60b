"""Nets: their devices, their initial values, and a graph of their own, so that ``net.export`` works."""

import warnings
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from multifit import LossSpec, MultiEstimator, TaskSpec, TrainerError, TrainerSpec
from tests.common.grids import TWO
from tests.common.hand_loop import SILENT
from tests.common.nets import hybridized, normed_heads, two_heads
from tests.common.specs import L2, two_head_spec


def devices_of(net: Any) -> set[tuple[mx.Context, ...]]:
    return {tuple(parameter.list_ctx()) for parameter in net.collect_params().values()}


def test_the_context_is_the_default_or_that_of_the_net(batches: Any, tmp_path: Path) -> None:
    """Also of one whose parameters were loaded."""
    default, net, loaded = (two_heads("hybrid") for _ in range(3))
    estimator = MultiEstimator(default, two_head_spec())
    assert estimator.context == [mx.gpu(0) if mx.context.num_gpus() else mx.cpu(0)]
    estimator.evaluate(batches)
    assert devices_of(default) == {tuple(estimator.context)}
    net.initialize(ctx=TWO)
    estimator = MultiEstimator(net, two_head_spec())
    assert estimator.context == TWO
    estimator.fit(batches, epochs=1)
    assert devices_of(net) == {tuple(TWO)}
    net.save_parameters(str(tmp_path / "net.params"))
    loaded.load_parameters(str(tmp_path / "net.params"), ctx=TWO)
    other = MultiEstimator(loaded, two_head_spec())
    assert other.context == TWO
    assert other.evaluate(batches) == pytest.approx(estimator.evaluate(batches), rel=1e-5)


@pytest.mark.parametrize("context", [mx.cpu(1), (mx.cpu(0), mx.cpu(1))])
def test_the_context_that_is_given_is_used(batches: Any, context: Any) -> None:
    net = two_heads()
    net.initialize()
    net(mx.nd.array(batches[0][0]))
    before = net.body.weight.data().asnumpy()
    estimator = MultiEstimator(net, two_head_spec(), context=context)
    estimator.check(batches)
    expected = (context,) if isinstance(context, mx.Context) else tuple(context)
    assert tuple(estimator.context) == expected
    assert devices_of(net) == {expected}  # the net was moved there, as it was
    for replica in net.body.weight.list_data():
        np.testing.assert_array_equal(replica.asnumpy(), before)
    estimator.fit(batches, batches, epochs=1)


def test_a_partly_initialised_net(batches: Any) -> None:
    """It stays where it is, and the rest comes to it."""
    net = two_heads()
    net.body.initialize(mx.init.One(), ctx=mx.cpu(1))
    MultiEstimator(net, two_head_spec(), initializer=mx.init.Constant(0.5)).check(batches)
    assert (net.body.weight.data() == 1).asnumpy().all()
    assert (net.digit.weight.data() == 0.5).asnumpy().all()
    assert devices_of(net) == {(mx.cpu(1),)}


def test_an_initializer_for_each_pattern(batches: Any) -> None:
    net = two_heads()
    rules = {".*bias": "ones", "body.*": "xavier", "size.weight": "zeros", ".*": mx.init.Constant(3)}
    MultiEstimator(net, two_head_spec(), initializer=rules).check(batches)
    for layer in (net.body, net.digit, net.size):
        assert (layer.bias.data() == 1).asnumpy().all()
    assert (net.size.weight.data() == 0).asnumpy().all()
    assert (net.digit.weight.data() == 3).asnumpy().all()
    bound = np.sqrt(6 / (6 + 8) * 3 / 3)  # Xavier's for 6 inputs and 8 outputs, "avg" with magnitude 3
    body = net.body.weight.data().asnumpy()
    assert 0.5 * bound < np.abs(body).max() <= bound


def test_an_initializer_alone_is_for_weights_that_have_no_values(batches: Any, log: Any) -> None:
    net = two_heads()
    MultiEstimator(net, two_head_spec(), initializer="xavier").check(batches)
    assert (net.body.bias.data() == 0).asnumpy().all()
    weight = net.body.weight.data().asnumpy()
    assert (weight != 0).all()
    MultiEstimator(net, two_head_spec(), initializer="zeros").check(batches)
    np.testing.assert_array_equal(net.body.weight.data().asnumpy(), weight)
    assert "the net is initialised already: initializer= is not used" in log()


def test_a_symbol_block(batches: Any) -> None:
    image = mx.sym.var("image")
    body = mx.sym.FullyConnected(image, name="body", num_hidden=8)
    heads = [mx.sym.FullyConnected(body, name=name, num_hidden=n) for name, n in (("digit", 3), ("size", 1))]
    trainers = {"body": TrainerSpec("body_.*"), "heads": TrainerSpec("(digit|size)_.*")}  # flat names
    estimator = MultiEstimator(
        mx.gluon.SymbolBlock(heads, [image]), two_head_spec(), trainers, TWO,
        {".*bias": "ones", ".*weight": "xavier"},
    )  # fmt: skip
    history = estimator.fit(batches, batches, epochs=2)
    assert history["val_loss"][-1] < history["val_loss"][0]
    assert "body_weight" in str(estimator.plan)


def test_a_layer_that_is_never_called(batches: Any) -> None:
    """Its shapes stay unknown, and no trainer can update it."""
    net = two_heads()
    net.forgotten = nn.Dense(4)
    estimator = MultiEstimator(net, two_head_spec())
    with pytest.raises(TrainerError, match=r"forgotten\.weight"):
        estimator.fit(batches, epochs=1)
    assert estimator.state.step == 0
    MultiEstimator(net, two_head_spec(), frozen=["forgotten.*"]).fit(batches, epochs=1)


USES = {
    "fit": lambda estimator, data: estimator.fit(data, epochs=1, event_handlers=SILENT),
    "check": lambda estimator, data: estimator.check(data),
    "evaluate": lambda estimator, data: estimator.evaluate(data),
    "predict": lambda estimator, data: estimator.predict(data),
}


class Modes(gluon.HybridBlock):
    """Returns two outputs while training and another when evaluating, which may look at the array."""

    def __init__(self, on_arrays: bool = False) -> None:
        super().__init__()
        self.body, self.on_arrays = nn.Dense(1, in_units=3), on_arrays

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        features = self.body(x)
        if autograd.is_training():
            return features, features * 2
        return features * (x.shape[1] if self.on_arrays else 3)


def fit_modes(on_arrays: bool) -> tuple[Any, np.ndarray]:
    """Fit it; return the net and its input."""
    evaluate = TaskSpec(outputs="out", labels=["y"], unused=["out", "y"])
    losses = {"l": LossSpec(L2, "a", "y")}
    spec = TaskSpec(outputs=["a", "b"], labels=["y"], losses=losses, unused=["b"], evaluate=evaluate)
    net, x = hybridized(Modes(on_arrays)), np.ones((4, 3), "float32")
    data = [(x, np.ones((4, 1), "float32"))] * 2
    MultiEstimator(net, spec).fit(data, epochs=1, event_handlers=SILENT)
    return net, x


def imported(path: Path, *arrays: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that inputs have no shape
        net = gluon.SymbolBlock.imports(f"{path}-symbol.json", ["data"], f"{path}-0000.params")
    return net(*[mx.nd.array(array) for array in arrays])


@pytest.mark.parametrize("use", USES)
def test_the_net_can_export_itself(use: str, batches: Any, tmp_path: Path) -> None:
    net = hybridized(normed_heads())
    estimator = MultiEstimator(net, two_head_spec())
    USES[use](estimator, batches)
    net.export(str(tmp_path / "net"))
    image = batches[0][0]
    expected = estimator.predict(image)
    for output, name in zip(imported(tmp_path / "net", image), expected):
        np.testing.assert_allclose(output.asnumpy(), expected[name], rtol=1e-5, atol=1e-6)


def test_it_is_the_graph_of_evaluating(tmp_path: Path) -> None:
    net, x = fit_modes(False)
    net.export(str(tmp_path / "net"))
    expected = 3 * net.body(mx.nd.array(x)).asnumpy()
    np.testing.assert_array_equal(imported(tmp_path / "net", x).asnumpy(), expected)
    net, _ = fit_modes(True)
    with pytest.raises(RuntimeError, match="hybridize"):
        net.export("nowhere")


def test_a_graph_of_the_net_is_kept_and_a_net_that_is_not_hybridized_gets_none(batches: Any) -> None:
    plain, net = two_heads("hybrid"), two_heads("hybridized")
    net.initialize()
    net(mx.nd.array(batches[0][0]))
    graph = net._cached_graph
    for each in (plain, net):
        MultiEstimator(each, two_head_spec()).fit(batches, epochs=1, event_handlers=SILENT)
    assert net._cached_graph is graph and not plain._cached_graph
