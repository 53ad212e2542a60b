"""Nets with operators whose gradients MXNet computes wrongly train as nets with the operators' formulas."""

from collections.abc import Callable
from typing import Any

import pytest

from multifit import LossSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.balance import UPGrad
from multifit.gluon.execution.cached_graph import CachedGraph
from multifit.gluon.execution.correct_gradients import SELU_ALPHA, SELU_SCALE, correct_gradients
from tests.common.compare import assert_same_parameters, twins
from tests.common.data import in_batches, two_head_arrays
from tests.common.hand_loop import SILENT, train_by_hand, trainer_of
from tests.common.nets import Heads
from tests.common.specs import L2, two_head_spec

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
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


def test_another_engine_gets_the_operators_themselves() -> None:
    net = nn.SELU()
    _, symbol = CachedGraph(lambda F, x: [net(x)], net.collect_params).symbol([mx.nd.ones((2, 3))])
    assert '"selu"' in symbol.tojson()
