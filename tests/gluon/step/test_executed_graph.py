"""Small nets on Executors: what autograd would compute, without it, of one graph or of one that is cut."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from multifit import MultiEstimator, TaskSpec, TrainerSpec
from multifit.balance import MGDA, Sum, UPGrad
from multifit.gluon.step import executor
from multifit.gluon.step.executor import ExecutedGraph
from multifit.gluon.step.split_graph import ExecutedSplit
from tests.common.compare import assert_same_parameters, assert_unchanged, snapshot, twins
from tests.common.data import digit_batches
from tests.common.grids import ONE, TWO
from tests.common.hand_loop import SILENT, train_by_hand, trainer_of
from tests.common.nets import Heads, sequential
from tests.common.shared_nets import three_tasks
from tests.common.specs import CE, L2
from tests.gluon.balance.test_gradients import NETS, fitted

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip


RNG = np.random.RandomState(5)


def make_graph(*layers: Any) -> tuple[Any, ExecutedGraph]:
    """Return a net, and the graph of the weighted sum of its squares, behind the mean of these."""
    net = sequential(*layers or (nn.Dense(2, in_units=3, activation="tanh"),))
    net.initialize(mx.init.Xavier())

    def compute(F: Any, size: Any, weights: Any, x: Any) -> list[Any]:
        squares = F.sum(F.square(net(x)))
        return [F.BlockGrad(squares / size), squares * weights]

    return net, ExecutedGraph(compute, net.collect_params, None, lambda: 1)


def run(graph: ExecutedGraph, x: Any, weight: float = 1.0) -> list[Any]:
    with autograd.record():
        return graph.run([nd.array([float(len(x))]), nd.array([weight]), x], x.shape)


def rows(count: int) -> Any:
    return nd.array(RNG.normal(size=(count, 3)))


def gradients(net: Any) -> list[np.ndarray]:
    return [p.grad().asnumpy() for p in net.collect_params().values() if p.grad_req != "null"]


def expected(net: Any, x: Any, scale: float = 1.0) -> list[np.ndarray]:
    """Return the gradients of the sum of the squares, times a number, operator by operator."""
    with autograd.record():
        total = nd.sum(nd.square(net(x))) * scale
    parameters = [p.data() for p in net.collect_params().values() if p.grad_req != "null"]
    return [each.asnumpy() for each in autograd.grad(total, parameters)]


@pytest.mark.parametrize("head", [None, 0.5])
def test_gradients_are_those_of_autograd_and_outputs_stay(head: float | None) -> None:
    net, graph = make_graph()
    results, executed = [], []
    for count in (4, 4, 2, 2, 4, 4, 3, 4):
        x = rows(count)
        means, objective = run(graph, x, 3.0)
        executed.append(graph.backward is not None)
        heads = [None if head is None else nd.array([head])]
        if graph.backward is not None:
            graph.backward(heads)
        else:
            objective.backward(*heads)
        results.append((means, nd.sum(nd.square(net(x))).asscalar() / count))
        for one, other in zip(gradients(net), expected(net, x, 3.0 * (head or 1.0))):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        assert all(p.data()._fresh_grad for p in net.collect_params().values())
    assert executed == [False, True, False, True, True, True, False, True]
    for means, mean in results:
        assert means.asscalar() == pytest.approx(mean, rel=1e-5)
    with autograd.record(train_mode=False):
        graph.run([nd.array([4.0]), nd.array([1.0]), x], x.shape)
    assert graph.backward is None


CUT_NETS = {**NETS, "a weight of 0": (NETS["skips"][0], lambda: three_tasks(parity=0.0))}
METHODS: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "UPGrad": lambda: UPGrad(on="features"),
    "MGDA, every second batch": lambda: MGDA(on="features", every=2),
    "tasks of several losses": lambda: UPGrad(on="features", tasks={"both": ["digit", "parity"]}),
}
DIGITS = digit_batches([6, 6, 6, 6, 4, 6])
BOTH = {"every": 2, "accumulate": True, "clip_norm": 0.1}


@pytest.mark.parametrize(
    ("name", "method", "options", "devices"),
    [
        ("two heads", "nothing", {}, ONE), ("two heads", "nothing", BOTH, TWO),
        ("skips", "UPGrad", {}, ONE), ("running statistics", "UPGrad", {}, ONE),
        ("a weight of 0", "UPGrad", {}, ONE), ("two heads", "UPGrad", BOTH, TWO),
        ("topk", "MGDA, every second batch", {}, TWO), ("skips", "tasks of several losses", {}, ONE),
    ],
)  # fmt: skip
def test_a_fit_is_the_same_bit_for_bit(
    name: str, method: str, options: Any, devices: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a whole graph, and of one that is cut where tasks branch."""
    kind = executor._Step if method == "nothing" else ExecutedSplit
    runs, forward = list[Any](), kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, *a: (runs.append(self), forward(self, *a))[1])
    make, spec = CUT_NETS[name]
    nets, figures = twins(make, DIGITS[0][0]), []
    for net, most in zip(nets, (executor.MAX_BYTES, 0)):
        monkeypatch.setattr(executor, "MAX_BYTES", most)
        runs.clear()
        trainers = TrainerSpec(".*", "adam", {"learning_rate": 0.02}, **options)
        estimator = fitted(net, METHODS[method](), 2, devices, trainers=trainers, batches=DIGITS, spec=spec())
        figures.append(estimator.figures("train"))
        assert bool(runs) == (bool(most) and name != "running statistics")
        assert len(set(runs)) <= 2 * len(devices)  # one for each size and device
    np.testing.assert_equal(figures[0], figures[1])  # a task of weight 0 has figures that are NaN
    assert_unchanged(nets[1], snapshot(nets[0]))


SIZES = [8, 8, 8, 8, 4, 8]
RATE = {"learning_rate": 0.1}
BATCHES = [
    (RNG.normal(size=(n, 5)).astype("float32"), RNG.randint(0, 3, n), RNG.normal(size=(n, 1))) for n in SIZES
]


class Refilled:
    """Yields the same NDArrays with every batch, filled anew, as loaders do that allocate memory once."""

    def __iter__(self) -> Iterator[list[Any]]:
        arrays = [nd.empty(array.shape) for array in BATCHES[0]]
        for batch in BATCHES:
            if len(batch[0]) == SIZES[0]:
                for array, values in zip(arrays, batch):
                    array[:] = nd.array(values)
                yield arrays


def as_is() -> list[list[Any]]:
    return [list(map(nd.array, batch)) for batch in BATCHES]


class Loop(Heads):
    """Its body ends in a loop, whose steps add an array that it takes from outside."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        features = self.body(x)
        steps = F.stack(features, features * 2, features * 3, axis=0)
        step = lambda row, state: (row, F.tanh(state * row) + features)  # noqa: E731
        _, features = F.contrib.foreach(step, steps, features)
        return self.digit(features), self.size(features)


class Masked(gluon.loss.Loss):
    """The squared error of the samples whose label is positive: how many, only the labels tell."""

    def __init__(self) -> None:
        super().__init__(None, 0)
        self.hybridize()

    def hybrid_forward(self, F: Any, x: Any, y: Any) -> Any:
        known = F.reshape(y > 0, (-1,))
        return F.mean(F.square(F.contrib.boolean_mask(x, known) - F.contrib.boolean_mask(y, known)))


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any], Any]] = {
    "as they are": (lambda: Heads(digit=3, size=1), as_is, L2),
    "arrays that are filled anew": (lambda: Heads(digit=3, size=1), Refilled, L2),
    "a loop": (lambda: Loop(digit=3, size=1), as_is, L2),
    "a loss of some samples": (lambda: Heads(digit=3, size=1), as_is, Masked()),
}


@pytest.mark.parametrize(
    ("case", "balance"), [*((case, None) for case in CASES), ("arrays that are filled anew", "features")]
)
def test_a_fit_has_the_numbers_of_the_hand_written_loop(case: str, balance: Any) -> None:
    make, batches, loss = CASES[case]
    net, other = twins(make, next(iter(batches()))[0].asnumpy())
    net.hybridize()  # the other is not, as MXNet's gradients of some hybridized nets are wrong
    losses = {"digit": CE, "size": loss}
    spec = TaskSpec(inputs=["x"], outputs=["digit", "size"], labels=["digit", "size"], losses=losses)
    estimator = MultiEstimator(net, spec, TrainerSpec(".*", "sgd", RATE), balance=balance and Sum(on=balance))
    estimator.fit(batches(), epochs=1, event_handlers=SILENT)

    def objective(net: Any, x: Any, digit: Any, size: Any) -> Any:
        digits, sizes = net(x)
        per_sample = 1 if isinstance(loss, gluon.loss.L2Loss) else len(x)
        return nd.sum(CE(digits, digit)) + nd.sum(loss(sizes, size)) * per_sample

    train_by_hand(other, trainer_of(other, "sgd", RATE), batches(), objective)
    assert_same_parameters(net, other, rtol=1e-5, atol=1e-6)
