"""Nets with operators whose gradients MXNet computes wrongly train as nets with the operators' formulas."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.balance import UPGrad
from multifit.gluon.graph.repair import SELU_ALPHA, SELU_SCALE, correct_gradients
from tests.common.compare import assert_same_parameters, twins
from tests.common.data import in_batches, two_head_arrays
from tests.common.hand_loop import SILENT, train_by_hand, trainer_of
from tests.common.nets import Heads
from tests.common.random_graphs import SHAPE, Graph, random_graph
from tests.common.specs import L2, two_head_spec

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip


BATCHES = in_batches(two_head_arrays(40).values(), 8)
Formula = Callable[[Any, Any, Any], Any]
# As MXNet's operator, and as a formula whose gradient MXNet computes correctly: of F, x and a slope.
OPERATORS: dict[str, tuple[Formula, Formula]] = {
    "prelu": (
        lambda F, x, slope: F.LeakyReLU(x, slope, act_type="prelu"),
        lambda F, x, slope: F.relu(x) - F.broadcast_mul(F.relu(-x), F.expand_dims(slope, 0)),
    ),
    "selu": (
        lambda F, x, slope: F.LeakyReLU(x, act_type="selu"),
        lambda F, x, slope: SELU_SCALE * F.where(x > 0, x, SELU_ALPHA * (F.exp(F.minimum(x, 0)) - 1)),
    ),
    "hard_sigmoid": (lambda F, x, slope: F.hard_sigmoid(x), lambda F, x, slope: F.clip(0.2 * x + 0.5, 0, 1)),
}


class Body(gluon.HybridBlock):
    """Adds the result of an operator to what it takes."""

    def __init__(self, operator: Formula, slopes: int) -> None:
        super().__init__()
        self._operator = operator
        self.dense = nn.Dense(6)
        self.slope = self.params.get("slope", shape=(slopes,), init=mx.init.Constant(0.25))

    def hybrid_forward(self, F: Any, x: Any, slope: Any) -> Any:
        x = self.dense(x)
        return self._operator(F, x, slope) + x


@pytest.mark.parametrize(
    ("name", "slopes", "devices", "balance"),
    [
        ("prelu", 6, 1, None), ("prelu", 1, 2, UPGrad()), ("selu", 1, 1, UPGrad()), ("selu", 1, 2, None),
        ("hard_sigmoid", 1, 1, None),
    ],
    ids=lambda each: each if isinstance(each, (str, int)) else type(each).__name__,
)  # fmt: skip
def test_a_hybridized_net_trains_as_the_formula_does(
    name: str, slopes: int, devices: int, balance: Any
) -> None:
    operator, formula = OPERATORS[name]
    nets = twins(lambda: Heads(body=Body(operator, slopes), digit=5, size=1), BATCHES[0][0])
    nets[1].body._operator = formula
    for net in nets:
        net.hybridize()
        net.collect_params().reset_ctx([mx.cpu(device) for device in range(devices)])
        trainer = TrainerSpec(".*", "sgd", {"learning_rate": 0.1})
        frozen = [] if name == "prelu" else ["body.slope"]
        estimator = MultiEstimator(net, two_head_spec(), trainer, frozen=frozen, balance=balance)
        estimator.fit(BATCHES, epochs=2, event_handlers=SILENT)
    assert_same_parameters(*nets)


class Weighted(gluon.HybridBlock):
    """A dense layer whose weight is a function of two parameters."""

    def __init__(self, weight: Formula) -> None:
        super().__init__()
        self._weight = weight
        self.one = self.params.get("one", shape=(6, 6), init=mx.init.Normal(1))
        self.other = self.params.get("other", shape=(6, 6), init=mx.init.Normal(1))

    def hybrid_forward(self, F: Any, x: Any, one: Any, other: Any) -> Any:
        return F.dot(x, self._weight(F, one, other))


WEIGHTS: dict[str, Formula] = {
    "moments": lambda F, one, other: F.broadcast_mul(F.moments(one, axes=0, keepdims=True)[0], other),
    "linalg": lambda F, one, other: F.linalg.trmm(one, other),
    "sum of both": lambda F, one, other: F.clip(one + other, -1, 1),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_accumulated_gradients_are_those_of_one_batch(name: str) -> None:
    nets = twins(lambda: Heads(body=Weighted(WEIGHTS[name]), digit=5, size=1), BATCHES[0][0])
    halves = [tuple(array[i : i + 4] for array in batch) for batch in BATCHES for i in (0, 4)]
    for net, batches, accumulate in zip(nets, (BATCHES, halves), (1, 2)):
        net.hybridize()
        trainer = TrainerSpec(".*", "sgd", {"learning_rate": 0.05})
        estimator = MultiEstimator(net, two_head_spec(), trainer, accumulate=accumulate)
        estimator.fit(batches, epochs=2, event_handlers=SILENT)
    assert_same_parameters(*nets)


class Shifted(gluon.HybridBlock):
    """A dense layer after BatchNorm, plus an input that nothing else takes."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self._last = last
        self.norm, self.hidden, self.output = nn.BatchNorm(), nn.Dense(6), nn.Dense(1)

    def hybrid_forward(self, F: Any, x: Any, shift: Any) -> Any:
        hidden = self.hidden(self.norm(x))
        if self._last:
            return self.output(hidden) + shift
        return self.output(F.tanh(shift + hidden))


@pytest.mark.parametrize("last", [True, False])
def test_an_input_that_is_only_added_leaves_the_gradients_right(last: bool) -> None:
    """MXNet raises an error if the sum is the net's output, and else takes memory that nobody has written."""
    shifts = [image[:, :1] if last else image for image, *_ in BATCHES]
    batches = [(image, shift, size) for (image, _, size), shift in zip(BATCHES, shifts)]
    net, by_hand = twins(lambda: Shifted(last), *batches[0][:2])
    net.hybridize()
    spec = TaskSpec(
        outputs="y", labels="size", losses={"y": LossSpec(L2, "y", "size")}, inputs=["image", "shift"]
    )
    trainer = TrainerSpec(".*", "sgd", {"learning_rate": 0.05})
    MultiEstimator(net, spec, trainer).fit(batches, epochs=1, event_handlers=SILENT)
    by_loop = trainer_of(by_hand, options={"learning_rate": 0.05})
    train_by_hand(by_hand, by_loop, batches, lambda net, image, shift, size: L2(net(image, shift), size))
    assert_same_parameters(net, by_hand)


def test_other_graphs_stay_what_they_are() -> None:
    graph = mx.sym.LeakyReLU(mx.sym.relu(mx.sym.var("x")), act_type="elu")
    assert correct_gradients(graph) is graph


@pytest.mark.parametrize("kind", ["avg", "max"])
def test_global_pooling_behind_a_reshape_is_the_same(kind: str) -> None:
    """Bit for bit, gradients too; only images need the reshape."""
    maps = mx.sym.Convolution(mx.sym.var("x"), mx.sym.var("w"), kernel=(3, 3), num_filter=8, no_bias=True)
    pooled = mx.sym.Pooling(mx.sym.relu(maps), global_pool=True, pool_type=kind, kernel=(1, 1))
    graphs, results = [pooled, correct_gradients(pooled, ["x", "w"])], []
    x, w = nd.random.normal(shape=(4, 3, 9, 9)), nd.random.normal(shape=(8, 3, 3, 3))
    for graph in graphs:
        x.attach_grad()
        w.attach_grad()
        with autograd.record():
            out = nd.CachedOp(graph, ())(x, w)
        out.backward()
        results.append([each.asnumpy() for each in (out, x.grad, w.grad)])
    np.testing.assert_equal(*results)
    assert "Reshape" in graphs[1].tojson()
    rows = mx.sym.Pooling(mx.sym.var("x"), global_pool=True, pool_type=kind, kernel=(1,))
    assert correct_gradients(rows, ["x"]) is rows


PARAMETERS, INPUTS = ("one", "other"), ("x", "z")
PLANS: dict[str, Any] = {
    "dynamic": (),
    "memory": (("static_alloc", True),),
    "shapes": (("static_alloc", True), ("static_shape", True)),
}


def objective(graph: Graph, F: Any, variables: Sequence[Any]) -> Any:
    return F.sum(F.sin(graph(F, variables)[-1]))


def by_cached_op(symbol: Any, arrays: dict[str, Any], grad_req: str, plan: Any) -> dict[str, np.ndarray]:
    """Return the parameters' gradients after two passes."""
    names = symbol.list_inputs()
    operator = nd.CachedOp(symbol, plan)
    for name in PARAMETERS:
        arrays[name].attach_grad(grad_req)
    for _ in range(2):
        with autograd.record():
            result = operator(*[arrays[name] for name in names])
        result.backward()
    return {name: arrays[name].grad.asnumpy() for name in PARAMETERS}


def by_executor(symbol: Any, arrays: dict[str, Any], grad_req: str) -> dict[str, np.ndarray]:
    names = symbol.list_inputs()
    gradients = {name: nd.zeros(SHAPE) for name in PARAMETERS}
    reqs = {name: grad_req if name in PARAMETERS else "null" for name in names}
    used = {name: gradients[name] for name in PARAMETERS if name in names}
    executor = symbol.bind(mx.cpu(), {name: arrays[name] for name in names}, used, reqs)
    for _ in range(2):
        executor.forward(is_train=True)
        executor.backward([nd.ones((1,))])
    return {name: gradient.asnumpy() for name, gradient in gradients.items()}


def gradients_of(graph: Graph, arrays: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the parameters' gradients, operator by operator."""
    for name in PARAMETERS:
        arrays[name].attach_grad()
    with autograd.record():
        result = objective(graph, nd, list(arrays.values()))
    result.backward()
    return {name: arrays[name].grad.asnumpy() for name in PARAMETERS}


@pytest.mark.parametrize("start", range(0, 120, 20))
def test_gradients_are_those_of_the_operators(start: int) -> None:
    checked = 0
    for seed in range(start, start + 20):
        random = np.random.RandomState(seed)
        graph = random_graph(random, len(PARAMETERS + INPUTS))
        arrays = {name: nd.array(random.normal(size=SHAPE)) for name in PARAMETERS + INPUTS}
        symbol = objective(graph, mx.sym, [mx.sym.var(name) for name in arrays])
        if not set(PARAMETERS) & set(symbol.list_inputs()):
            continue
        once, symbol = gradients_of(graph, arrays), correct_gradients(symbol, PARAMETERS)
        for grad_req, times in (("write", 1), ("add", 2)):
            results = {name: by_cached_op(symbol, arrays, grad_req, plan) for name, plan in PLANS.items()}
            results["executor"] = by_executor(symbol, arrays, grad_req)
            for run, gradients in results.items():
                for name, gradient in gradients.items():
                    where = f"seed {seed}, {grad_req}, {run}, {name}"
                    expected = times * once[name]
                    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5, err_msg=where)
        checked += 1
    assert checked > 5
