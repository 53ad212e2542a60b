"""The devices of a run, and the initialisation of its net."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn

from multifit import MultiEstimator, TaskSpec, TrainerError, TrainerSpec

TWO = [mx.cpu(0), mx.cpu(1)]


def devices_of(net: Any) -> set[tuple[mx.Context, ...]]:
    return {tuple(parameter.list_ctx()) for parameter in net.collect_params().values()}


def test_the_default_context(make_net: Any, make_spec: Any, batches: Any) -> None:
    net = make_net()
    estimator = MultiEstimator(net, make_spec())
    assert estimator.context == [mx.gpu(0) if mx.context.num_gpus() else mx.cpu(0)]
    estimator.evaluate(batches)
    assert devices_of(net) == {tuple(estimator.context)}


@pytest.mark.parametrize("contexts", [[mx.cpu(1)], TWO])
def test_the_context_of_the_net_is_used(make_net: Any, make_spec: Any, batches: Any, contexts: Any) -> None:
    net = make_net()
    net.initialize(ctx=contexts)
    estimator = MultiEstimator(net, make_spec())
    assert estimator.context == contexts
    estimator.fit(batches, epochs=1)
    assert devices_of(net) == {tuple(contexts)}


@pytest.mark.parametrize("context", [mx.cpu(1), [mx.cpu(1)], (mx.cpu(0), mx.cpu(1))])
def test_the_context_that_is_given_is_used(make_net: Any, make_spec: Any, batches: Any, context: Any) -> None:
    net = make_net()
    net.initialize()
    net(mx.nd.array(batches[0][0]))
    before = net.body.weight.data().asnumpy()
    estimator = MultiEstimator(net, make_spec(), context=context)
    estimator.check(batches)
    expected = (context,) if isinstance(context, mx.Context) else tuple(context)
    assert tuple(estimator.context) == expected
    assert devices_of(net) == {expected}  # the net was moved there, as it was
    for replica in net.body.weight.list_data():
        np.testing.assert_array_equal(replica.asnumpy(), before)
    estimator.fit(batches, batches, epochs=1)


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (mx.gpu(99), r"gpu\(99\) does not exist: this machine has \d+ GPUs"),
        ([mx.cpu(0), mx.cpu(0)], r"cpu\(0\) is given twice"),
        ([], "the list is empty"),
        ("cpu", "'cpu' is not a context"),
        ([mx.cpu(0), 1], "1 is not a context"),
    ],
)
def test_an_invalid_context_is_an_error(make_net: Any, make_spec: Any, context: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiEstimator(make_net(), make_spec(), context=context)


def test_a_partly_initialised_net(make_net: Any, make_spec: Any, batches: Any) -> None:
    net = make_net()
    net.body.initialize(mx.init.One())
    MultiEstimator(net, make_spec(), initializer=mx.init.Constant(0.5)).check(batches)
    assert (net.body.weight.data() == 1).asnumpy().all()
    assert (net.digit.weight.data() == 0.5).asnumpy().all()


def test_a_net_that_is_partly_on_another_device(make_net: Any, make_spec: Any, batches: Any) -> None:
    net = make_net()
    net.body.initialize(ctx=mx.cpu(1))
    MultiEstimator(net, make_spec()).fit(batches, epochs=1)
    assert devices_of(net) == {(mx.cpu(1),)}


def test_an_initializer_for_each_pattern(make_net: Any, make_spec: Any, batches: Any) -> None:
    net = make_net()
    rules = {
        ".*bias": mx.init.One(),
        "body.*": mx.init.Xavier(),
        "size.weight": "zeros",
        ".*": mx.init.Constant(3),
    }
    MultiEstimator(net, make_spec(), initializer=rules).check(batches)
    for layer in (net.body, net.digit, net.size):
        assert (layer.bias.data() == 1).asnumpy().all()
    assert (net.size.weight.data() == 0).asnumpy().all()
    assert (net.digit.weight.data() == 3).asnumpy().all()
    bound = np.sqrt(6 / (6 + 8) * 3 / 3)  # Xavier's for 6 inputs and 8 outputs, "avg" with magnitude 3
    body = net.body.weight.data().asnumpy()
    assert 0.5 * bound < np.abs(body).max() <= bound


def test_matrix_initializers_do_not_apply_to_biases(make_net: Any, make_spec: Any, batches: Any) -> None:
    net = make_net()
    MultiEstimator(net, make_spec(), initializer={"body.*": mx.init.Xavier()}).check(batches)
    assert (net.body.bias.data() == 0).asnumpy().all()
    assert (net.body.weight.data() != 0).asnumpy().all()


@pytest.mark.parametrize("initializer", [None, "xavier", mx.init.Normal(0.1)])
def test_one_initializer_for_all(initializer: Any, make_net: Any, make_spec: Any, batches: Any) -> None:
    net = make_net()
    MultiEstimator(net, make_spec(), initializer=initializer).check(batches)
    assert (net.body.bias.data() == 0).asnumpy().all()
    assert (net.body.weight.data() != 0).asnumpy().all()


def test_an_initialised_net_needs_no_initializer(
    make_net: Any, make_spec: Any, batches: Any, log: Any
) -> None:
    net = make_net()
    net.initialize(mx.init.One())
    MultiEstimator(net, make_spec(), initializer="zeros").check(batches)
    assert (net.body.weight.data() == 1).asnumpy().all()
    assert "the net is initialised already: initializer= is not used" in log()


@pytest.mark.parametrize(
    ("initializer", "message"),
    [
        ("xavjer", 'did you mean "xavier"'),
        ({"encoder.*": "xavier"}, 'pattern "encoder..*" selects none'),
        ({"(": "xavier"}, "not a regular expression"),
        (3, "3 is not an initializer"),
    ],
)
def test_an_invalid_initializer_is_an_error(
    initializer: Any, message: str, make_net: Any, make_spec: Any, batches: Any
) -> None:
    with pytest.raises(TrainerError, match=message):
        MultiEstimator(make_net(), make_spec(), initializer=initializer).fit(batches, epochs=1)


def test_the_trainers_of_a_deferred_net(make_net: Any, make_spec: Any, batches: Any) -> None:
    net = make_net()
    trainers = {"body": TrainerSpec(net.body), "heads": TrainerSpec("(digit|size).*")}
    estimator = MultiEstimator(net, make_spec(), trainers)
    assert estimator.learning_rates() == {"lr_body": 1e-3, "lr_heads": 1e-3}  # before any shape is known
    estimator.fit(batches, epochs=1)


@pytest.mark.parametrize("contexts", [[mx.cpu(0)], TWO])
def test_a_symbol_block(contexts: Any, batches: Any) -> None:
    image = mx.sym.var("image")
    body = mx.sym.FullyConnected(image, name="body", num_hidden=8)
    outputs = [
        mx.sym.FullyConnected(body, name=name, num_hidden=n) for name, n in (("digit", 3), ("size", 1))
    ]
    net = gluon.SymbolBlock(outputs, [image])
    spec = TaskSpec(
        inputs=["image"], outputs=["digit", "size"], labels=["digit", "size"],
        losses={"digit": gluon.loss.SoftmaxCrossEntropyLoss(), "size": gluon.loss.L2Loss()},
    )  # fmt: skip
    trainers = {"body": TrainerSpec("body_.*"), "heads": TrainerSpec("(digit|size)_.*")}  # flat names
    estimator = MultiEstimator(net, spec, trainers, contexts, {".*bias": "ones", ".*weight": "xavier"})
    history = estimator.fit(batches, batches, epochs=3)
    assert history["val_loss"][-1] < history["val_loss"][0]
    assert "body_weight" in str(estimator.plan)


def test_a_net_loaded_from_a_file(tmp_path: Any, make_net: Any, make_spec: Any, batches: Any) -> None:
    trained = make_net("hybrid")
    MultiEstimator(trained, make_spec()).fit(batches, epochs=1)
    trained.save_parameters(str(tmp_path / "net.params"))
    net = make_net("hybrid")
    net.load_parameters(str(tmp_path / "net.params"), ctx=TWO)
    estimator = MultiEstimator(net, make_spec())
    assert estimator.context == TWO
    assert estimator.evaluate(batches) == pytest.approx(
        MultiEstimator(trained, make_spec()).evaluate(batches), rel=1e-5
    )


def test_a_layer_that_is_never_called(make_spec: Any, batches: Any, make_net: Any) -> None:
    """Its shapes stay unknown, and no trainer can move it."""
    net = make_net()
    net.forgotten = nn.Dense(4)
    estimator = MultiEstimator(net, make_spec())
    with pytest.raises(TrainerError, match=r"forgotten\.weight"):
        estimator.fit(batches, epochs=1)
    assert estimator.state.step == 0
    MultiEstimator(net, make_spec(), frozen=["forgotten.*"]).fit(batches, epochs=1)
