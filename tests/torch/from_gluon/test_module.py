"""A Gluon net as a module: its parameters, graphs, modes and values."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.parameter import UninitializedParameter

from multifit import LossSpec, MetricSpec, SpecError, TaskSpec, TrainerError
from multifit.gluon.compat import mx
from multifit.torch.from_gluon.module import BridgedNet
from tests.common.nets import sequential
from tests.torch.from_gluon.bridges import assert_same, bridged, of_gluon, of_torch

nn = mx.gluon.nn
L2 = mx.gluon.loss.L2Loss()
X = np.random.RandomState(0).randn(5, 3, 8, 8)
Y = np.random.RandomState(1).randn(5, 4)


def spec(**fields: Any) -> TaskSpec:
    return TaskSpec(**{"outputs": ["y"], "labels": ["y"], "losses": {"y": L2}, **fields})


def convolutions(**norm: Any) -> Any:
    net = sequential(nn.Conv2D(6, 3), nn.BatchNorm(**norm), nn.Activation("relu"), nn.Dense(4))
    net.cast("float64")
    return net


def run(net: Any, *arrays: np.ndarray, training: bool = False) -> Any:
    net.train(training)
    return net(*map(torch.from_numpy, arrays))


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


def test_names_are_those_of_gluon_and_shapes_come_with_the_first_batch():
    net = convolutions()
    setup, bridge = bridged(net, spec(), initializer=mx.init.Constant(0.5))
    module: BridgedNet = setup.net
    names = ["0.weight", "0.bias", "1.gamma", "1.beta", "3.weight", "3.bias"]
    assert [name for name, _ in module.named_parameters()] == names
    assert all(isinstance(each, UninitializedParameter) for each in module.parameters())
    assert [name for name, _ in module.named_buffers()] == ["1.running_mean", "1.running_var"]
    before = module.get_parameter("0.weight")
    outputs = run(module, X)
    assert module.get_parameter("0.weight") is before and before.dtype == torch.float64
    assert before.unique().tolist() == [0.5] and before.shape == (6, 3, 3, 3)
    assert_same(outputs.detach().numpy(), net(mx.nd.array(X, dtype="float64")).asnumpy(), 1e-12)
    bridge.read()
    assert module.get_parameter("0.weight") is before


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-8), ("float32", 1e-5)])
def test_a_step_is_that_of_mxnet(dtype: str, tolerance: float):
    net = convolutions()
    net.cast(dtype)
    setup, bridge = bridged(net, spec())
    run(setup.net, X.astype(dtype))
    bridge.write_back()
    slots = {"data": X.astype(dtype), "y": Y.astype(dtype)}
    setup.net.train()
    assert_same(of_torch(setup, slots), of_gluon(net, setup.spec and spec(), slots), tolerance)
    ours = {name: each.numpy() for name, each in setup.net.named_buffers()}
    theirs = {n: p.data().asnumpy() for n, p in net._collect_params_with_prefix().items() if n in ours}
    assert_same(ours, theirs, tolerance)


def test_values_go_back_and_forth(tmp_path):
    net = convolutions()
    net.initialize()
    net(mx.nd.array(X, dtype="float64"))
    setup, bridge = bridged(net, spec())
    module = setup.net
    run(module, X, training=True).sum().backward()
    with torch.no_grad():
        for each in module.parameters():
            each.sub_(each.grad)
    bridge.write_back()
    net.save_parameters(str(tmp_path / "final.params"))
    expected = run(module, X).detach().numpy()
    other = convolutions()
    other.load_parameters(str(tmp_path / "final.params"))
    for each in (net, other):
        assert_same(each(mx.nd.array(X, dtype="float64")).asnumpy(), expected, 1e-12)
    net[3].weight.set_data(mx.nd.zeros((4, 216), dtype="float64"))
    net[3].bias.grad_req = "null"
    bridge.read()
    assert not module.get_parameter("3.weight").any()
    assert not module.get_parameter("3.bias").requires_grad and module.get_parameter("3.weight").requires_grad
    net.add(nn.Dense(2))
    with pytest.raises(SpecError, match="it has other parameters than when the estimator was made; added"):
        bridge.read()


def test_modes_absent_inputs_and_nested_outputs_have_graphs_of_their_own():
    module = bridged(Branches(), spec(inputs=["x", "length"], outputs=["y", ...]))[0].net
    x, length = np.ones((2, 4), "float32"), np.array([1, 2], "float32")
    assert len(run(module, x)["all"]) == 1
    (both,) = run(module, x, length)["all"]
    both, first = run(module, x, length, training=True)["all"]
    assert (both.shape, first.shape) == ((2, 2), (2, 1))
    assert len(module._graphs) == 3
    run(module, x)
    assert len(module._graphs) == 3
    assert [name for name, _ in module.named_parameters()] == [
        "body.weight", "body.bias", "type_.weight", "type_.bias",
    ]  # fmt: skip
    assert [name for name, _ in module.named_buffers()] == ["scale"]


def test_shared_parameters_are_one():
    dense = nn.Dense(3, in_units=3)
    net = sequential(dense, nn.Dense(3, in_units=3, params=dense.params))
    module = bridged(net, spec())[0].net
    run(module, np.ones((2, 3), "float32"))
    assert [name for name, _ in module.named_parameters()] == ["0.weight", "0.bias"]
    assert module.get_parameter("1.weight") is module.get_parameter("0.weight")


def test_frozen_norms_keep_their_statistics():
    module = bridged(convolutions(), spec())[0].net
    run(module, X)
    norm = module.get_submodule("1")

    def changes(change: Any) -> bool:
        before = norm.running_mean.clone()
        module.train()
        change()
        module(torch.from_numpy(X)).sum().backward()
        return not torch.equal(before, norm.running_mean)

    def nothing() -> None:
        pass

    def freeze() -> None:
        norm.requires_grad_(False)

    for change, expected in ((nothing, True), (norm.eval, False), (freeze, False)):
        assert changes(change) == expected
    norm.load_state_dict(norm.state_dict())
    assert "Norm()" in repr(module)
    fixed = bridged(convolutions(scale=False, center=False), spec())[0].net
    run(fixed, X)
    before = fixed.get_buffer("1.running_var").clone()
    run(fixed, X, training=True).sum().backward()
    assert not torch.equal(before, fixed.get_buffer("1.running_var"))


def test_parameters_that_a_graph_does_not_need_get_their_shape_with_the_one_that_does():
    class Two(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Dense(2), nn.Dense(2)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return self.one(x) + self.other(x) if mx.autograd.is_training() else self.one(x)

    setup, bridge = bridged(Two(), spec())
    x = np.ones((3, 4), "float32")
    run(setup.net, x)
    assert setup.net.get_parameter("other.weight").numel() == 0
    bridge.write_back()
    weight = setup.net.get_parameter("other.weight")
    run(setup.net, x, training=True)
    assert setup.net.get_parameter("other.weight") is weight and weight.shape == (2, 4)


class Reads(mx.gluon.HybridBlock):
    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return x.reshape((x.shape[0], -1))


class Returns(mx.gluon.Block):
    def forward(self, x: Any) -> Any:
        return {"x": x, "n": 3}


class Foreign(mx.gluon.HybridBlock):
    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return x * OTHER(x)


OTHER = nn.Dense(1)

REFUSED = {
    "it reads shapes": (
        Reads(),
        "the net cannot become a graph: AttributeError: .*shape.*write it as a Hybrid",
    ),
    "it returns a number": (Returns(), "cannot become a graph: it returns int for symbols"),
    "another block": (
        Foreign(),
        r"it reads \"dense\d+_weight\", .*which it does not hold; make the Block that",
    ),
    "an operator": (
        nn.HybridLambda(lambda F, x: F.khatri_rao(x, x)),
        "the net: the operator khatri_rao .* has no translation; use other operators",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_become_a_graph_is_refused(name: str):
    net, message = REFUSED[name]
    module = bridged(net, spec())[0].net
    with pytest.raises(SpecError, match=message + '.* or use engine="mxnet"'):
        run(module, np.ones((2, 3), "float32"))


def test_parameters_that_torch_does_not_train_are_refused():
    hooked = nn.Dense(2)
    hooked.register_forward_hook(print)
    with pytest.raises(SpecError, match='"0" has hooks; detach them'):
        bridged(sequential(hooked), spec())
    low = nn.Dense(2)
    low.cast("float16")
    sparse = nn.Embedding(3, 2, sparse_grad=True)
    adding = nn.Dense(2)
    adding.weight.grad_req = "add"
    with pytest.raises(TrainerError) as caught:
        bridged(sequential(low, sparse, adding), spec())
    lines = [each.message for each in caught.value.problems]
    assert 'the net\'s parameters: "1.weight" have sparse gradients; use dense layers' in lines[0]
    assert '"0.weight", "0.bias" are neither float32 nor float64; call net.cast("float32")' in lines[1]
    assert '"2.weight" have grad_req="add"; give MultiEstimator(accumulate=...)' in lines[2]


def twice(net: Any, slots: Any) -> Any:
    return net(slots["a"] * 2) - net(slots["b"])


def by_numbers(net: Any, slots: Any) -> Any:
    return net(slots["a"]) * (1 if slots["b"].asnumpy().sum() > 0 else -1)


@pytest.mark.parametrize(("function", "on_host"), [(twice, False), (by_numbers, True)])
def test_forward_functions(function: Any, on_host: bool):
    net = nn.Dense(2)
    inputs = {"inputs": ["a", "b"]}
    evaluate = TaskSpec(**inputs, outputs=["y"], forward=function, unused=["y"])
    setup, bridge = bridged(net, spec(**inputs, forward=twice, evaluate=evaluate))
    module = setup.net.eval()
    slots = {"a": torch.ones(3, 4), "b": -torch.ones(3, 4), "absent": None}
    training = setup.spec.forward(module.train(), slots)
    assert training.requires_grad
    for value in (0.0, 1.0):
        with torch.no_grad():
            module.get_parameter("bias").fill_(value)
            found = setup.spec.evaluation.forward(module.eval(), slots)
        bridge.write_back()
        arrays = {name: None if each is None else mx.nd.array(each.numpy()) for name, each in slots.items()}
        np.testing.assert_allclose(found.numpy(), function(net, arrays).asnumpy(), rtol=1e-6)
    forward = setup.spec.evaluation.forward
    assert forward._on_host == on_host
    with pytest.raises(
        SpecError,
        match="forward=, with the net, cannot become a graph: .*asnumpy is not implemented for Symbol",
    ):
        bridged(nn.Dense(2), spec(**inputs, forward=by_numbers))[0].spec.forward(module, slots)


def test_a_loss_alone_makes_a_spec():
    setup, _ = bridged(nn.Dense(3), mx.gluon.loss.SoftmaxCELoss())
    assert setup.spec.output_names == ("output",) and list(setup.spec.metrics) == ["accuracy"]
    assert LossSpec is type(setup.spec.losses["output"])


def test_a_bridged_net_compiles():
    module = bridged(convolutions(), spec(), initializer=mx.init.Xavier())[0].net.eval()
    compiled = torch.compile(module, backend="eager")
    found = compiled(torch.from_numpy(X))  # which traces the net, and gives it its parameters
    assert torch.equal(found, run(module, X)) and len(module._graphs) == 1


def test_a_metric_whose_name_mxnet_lacks():
    fields = {"metrics": {"iou": MetricSpec("mean_iou", "y", "y")}}
    setup, _ = bridged(nn.Dense(3), spec(**fields))
    assert setup.spec.metrics["iou"].metric == "mean_iou"
