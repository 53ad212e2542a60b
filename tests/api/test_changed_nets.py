"""Nets that are changed after the estimator was made, or that make layers in their first forward pass."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import MultiEstimator, SpecError, TrainerSpec
from tests.common.compare import assert_unchanged, snapshot
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import MakesLayer, hybridized, two_heads
from tests.common.specs import CE, one_loss_spec, two_head_spec

import mxnet as mx  # isort: skip
from mxnet.gluon import nn  # isort: skip


def test_a_net_with_other_parameters_is_refused(estimator: MultiEstimator, batches: Any) -> None:
    estimator.fit(batches, batches, epochs=1)
    net = estimator.net
    net.more, net.size = nn.Dense(2), nn.Dense(1, in_units=8, use_bias=False)
    net.initialize()
    moved = {name: p.data().asnumpy() for name, p in estimator.parameters.items()}
    message = (
        'made; replaced: "size.weight"; added: "more.weight", "more.bias"; removed: "size.bias"; make a new'
    )
    for call in (
        lambda: estimator.fit(batches, epochs=1),
        lambda: estimator.check(batches),
        lambda: estimator.evaluate(batches),
        lambda: estimator.predict(batches),
    ):
        with pytest.raises(SpecError, match=message):
            call()
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
