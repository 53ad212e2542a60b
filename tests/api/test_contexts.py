"""The devices of a run, and the initialisation of its net."""

from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

from multifit import MultiEstimator, TrainerError, TrainerSpec
from tests.common.grids import TWO
from tests.common.nets import two_heads
from tests.common.specs import two_head_spec


def devices_of(net: Any) -> set[tuple[mx.Context, ...]]:
    return {tuple(parameter.list_ctx()) for parameter in net.collect_params().values()}


def test_the_default_context(batches: Any) -> None:
    net = two_heads()
    estimator = MultiEstimator(net, two_head_spec())
    assert estimator.context == [mx.gpu(0) if mx.context.num_gpus() else mx.cpu(0)]
    estimator.evaluate(batches)
    assert devices_of(net) == {tuple(estimator.context)}


def test_the_context_of_the_net_is_used(batches: Any, tmp_path: Path) -> None:
    """Also of one whose parameters were loaded."""
    net, loaded = two_heads("hybrid"), two_heads("hybrid")
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
