"""A Gluon net as a module: its parameters, graphs and modes; and values of Gluon's parameters."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.parameter import UninitializedParameter

from multifit import TaskSpec
from multifit.gluon.compat import mx
from multifit.torch.from_gluon.module import BridgedNet
from multifit.torch.from_gluon.parameters import set_values, values_of
from tests.common.nets import sequential
from tests.torch.from_gluon.bridges import assert_same, bridged

nn = mx.gluon.nn
X = np.random.RandomState(0).randn(5, 3, 8, 8)


def module_of(net: Any, outputs: Any = ("y",), inputs: Any = ("x",), **options: Any) -> BridgedNet:
    spec = TaskSpec(inputs=list(inputs), outputs=list(outputs), labels=[], losses={}, unused=["y"])
    return bridged(net, spec, **options)[0].net


def convolutions(**norm: Any) -> Any:
    net = sequential(nn.Conv2D(6, 3), nn.BatchNorm(**norm), nn.Activation("relu"), nn.Dense(4))
    net.cast("float64")
    return net


def run(net: Any, *arrays: np.ndarray, training: bool = False) -> Any:
    return net.train(training)(*map(torch.from_numpy, arrays))


class Branches(mx.gluon.HybridBlock):
    """A net of several outputs, which computes another thing in training, and need not have a length."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.type = nn.Dense(3, flatten=False), nn.Dense(2, in_units=3)
        self.scale = self.params.get_constant("scale", np.array([2.0]))

    def hybrid_forward(self, F: Any, x: Any, length: Any = None, scale: Any = None) -> Any:
        features = self.body(x)
        if length is not None:
            features = F.broadcast_mul(features, F.expand_dims(length, axis=1))
        first, *_ = F.split(features, num_outputs=3, axis=1)
        both = F.broadcast_mul(self.type(features), scale)
        return {"all": [both, first]} if mx.autograd.is_training() else {"all": [both]}


def test_names_are_those_of_gluon_and_shapes_come_with_the_first_batch() -> None:
    net = convolutions()
    module = module_of(net, initializer=mx.init.Constant(0.5))
    names = ["0.weight", "0.bias", "1.gamma", "1.beta", "3.weight", "3.bias"]
    assert [name for name, _ in module.named_parameters()] == names
    assert all(isinstance(each, UninitializedParameter) for each in module.parameters())
    assert [name for name, _ in module.named_buffers()] == ["1.running_mean", "1.running_var"]
    before = module.get_parameter("0.weight")
    outputs = run(module, X)
    assert module.get_parameter("0.weight") is before and before.dtype == torch.float64
    assert before.unique().tolist() == [0.5] and before.shape == (6, 3, 3, 3)
    assert_same(outputs.detach().numpy(), net(mx.nd.array(X, dtype="float64")).asnumpy(), 1e-12)


def test_modes_absent_inputs_and_nested_outputs_have_graphs_of_their_own() -> None:
    module = module_of(Branches(), ["y", ...], ["x", "length"])
    x, length = np.ones((2, 4), "float32"), np.array([1, 2], "float32")
    assert len(run(module, x)["all"]) == 1
    (both,) = run(module, x, length)["all"]
    both, first = run(module, x, length, training=True)["all"]
    assert (both.shape, first.shape) == ((2, 2), (2, 1))
    run(module, x)
    assert len(module._graphs) == 3
    names = ["body.weight", "body.bias", "type_.weight", "type_.bias"]
    assert [name for name, _ in module.named_parameters()] == names
    assert [name for name, _ in module.named_buffers()] == ["scale"]


def test_frozen_norms_keep_their_statistics() -> None:
    module = module_of(convolutions())
    run(module, X)
    norm = module.get_submodule("1")

    def changes(change: Any) -> bool:
        before = norm.running_mean.clone()
        module.train()
        change()
        module(torch.from_numpy(X)).sum().backward()
        return not torch.equal(before, norm.running_mean)

    assert changes(lambda: None)
    assert not changes(norm.eval)
    assert not changes(lambda: norm.requires_grad_(False))
    norm.load_state_dict(norm.state_dict())
    assert "Norm()" in repr(module)


def test_parameters_that_a_graph_does_not_need_get_their_shape_with_the_one_that_does() -> None:
    class Two(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Dense(2), nn.Dense(2)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return self.one(x) + self.other(x) if mx.autograd.is_training() else self.one(x)

    setup, bridge = bridged(Two(), TaskSpec(outputs=["y"], labels=[], losses={}, unused=["y"]))
    x = np.ones((3, 4), "float32")
    run(setup.net, x)
    assert setup.net.get_parameter("other.weight").numel() == 0
    bridge.write_back()
    weight = setup.net.get_parameter("other.weight")
    run(setup.net, x, training=True)
    assert setup.net.get_parameter("other.weight") is weight and weight.shape == (2, 4)


def test_a_bridged_net_compiles() -> None:
    module = module_of(convolutions(), initializer=mx.init.Xavier()).eval()
    compiled = torch.compile(module, backend="eager")
    found = compiled(torch.from_numpy(X))  # which traces the net, and gives it its parameters
    assert torch.equal(found, run(module, X)) and len(module._graphs) == 1


# ---- The values of Gluon's parameters


def initialized(*layers: Any, **flags: Any) -> tuple[Any, dict[str, Any]]:
    net = sequential(*layers)
    net.initialize(mx.init.Xavier())
    net.hybridize(**flags)
    return net, net._collect_params_with_prefix()


def test_weights_are_read_rightly_while_operators_use_them() -> None:
    layers = [nn.Conv2D(4, 3, padding=1, in_channels=4) for _ in range(6)]
    layers.append(nn.Conv2DTranspose(4, 16, 8, 4, in_channels=4))
    net, parameters = initialized(*layers, static_alloc=True, static_shape=True)
    values = {name: value.copy() for name, value in values_of(parameters).items()}
    for _ in range(60):  # without waiting, one of ten reads is wrong
        with mx.autograd.train_mode():
            net(mx.nd.ones((4, 4, 16, 16)))
        np.testing.assert_equal(values_of(parameters), values)


def test_fused_operators_that_have_run_see_new_values() -> None:
    net, parameters = initialized(nn.Conv2D(4, 3, in_channels=4), nn.BatchNorm(in_channels=4))
    x = mx.nd.random.uniform(shape=(2, 4, 8, 8))
    net.optimize_for(x, backend="MKLDNN", static_alloc=True, static_shape=True)
    # which fuses both, and keeps the weights that it computes from them
    before = net(x).asnumpy()
    set_values(parameters, {name: 2 * value for name, value in values_of(parameters).items()})
    assert (parameters["1.running_var"].data().asnumpy() == 2).all()
    after = before * np.sqrt(1 + 1e-5) / np.sqrt(2 + 1e-5) * 2 * 2
    np.testing.assert_allclose(net(x).asnumpy(), after, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
def test_values_of_all_dtypes_and_shapes_can_be_set(dtype: str) -> None:
    parameters = {
        name: mx.gluon.Parameter(name, shape=shape, dtype=dtype, init="zeros", allow_deferred_init=True)
        for name, shape in {"one": (1,), "matrix": (2, 3), "later": (0, 2)}.items()
    }
    for name, parameter in parameters.items():
        parameter.initialize(ctx=[mx.cpu(0), mx.cpu(1)] if name == "matrix" else mx.cpu())
    shapes = {"one": (1,), "matrix": (2, 3), "later": (3, 2)}  # the last is not initialised yet
    values = {name: np.full(shape, 2, dtype) for name, shape in shapes.items()}
    set_values(parameters, values)
    parameters["later"]._finish_deferred_init()
    for name, parameter in parameters.items():
        for array in parameter.list_data():
            np.testing.assert_array_equal(array.asnumpy(), values[name])
            assert array.dtype == np.dtype(dtype)


def test_values_can_be_set_while_something_is_recorded() -> None:
    _, parameters = initialized(nn.Dense(3, in_units=2))
    weight = parameters["0.weight"].data()
    values = {name: value.copy() for name, value in values_of(parameters).items()}
    with mx.autograd.record():
        total = mx.nd.sum(weight * weight)
        set_values(parameters, values)
    total.backward()
    np.testing.assert_allclose(weight.grad.asnumpy(), 2 * values["0.weight"], rtol=1e-6)
