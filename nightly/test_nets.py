"""Nets that are random graphs, and a large one of gluoncv, learn what they learn in a hand-written loop.

MXNet plans a graph's memory in several ways, and some gradients are wrong in some of them; see
multifit/gluon/graph/repair.py. ``--fuzz-seed 7`` repeats a search.
"""

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.balance import Sum
from multifit.utils.seeding import seed_everything
from tests.common.compare import assert_same_parameters
from tests.common.hand_loop import SILENT, assert_trains_as_by_hand, train_by_hand, trainer_of
from tests.common.random_graphs import SHAPE, Graph, random_graph
from tests.common.specs import L2

import mxnet as mx  # isort: skip
from gluoncv.loss import ICNetLoss  # isort: skip
from gluoncv.model_zoo.icnet import ICNet  # isort: skip
from mxnet import gluon  # isort: skip

NETS = 40  # of each test
RATE = {"learning_rate": 0.01}
SPEC = TaskSpec(
    inputs=["x", "z"],
    outputs=["one", "other"],
    labels=["a", "b"],
    losses={"a": LossSpec(L2, "one", "a"), "b": LossSpec(L2, "other", "b")},
)


class Net(gluon.HybridBlock):
    """Two outputs, computed from the last result of a graph and from another one."""

    def __init__(self, graph: Graph, other: int) -> None:
        super().__init__()
        self._graph, self._other = graph, other
        for name in ("one", "two", "last"):
            setattr(self, name, self.params.get(name, shape=SHAPE, init=mx.init.Normal(0.7)))

    def hybrid_forward(self, F: Any, x: Any, z: Any, one: Any, two: Any, last: Any) -> Any:
        values = self._graph(F, [one, two, x, z])
        outputs = F.dot(values[-1], last), F.tanh(values[self._other] + last)
        return tuple(F.sum(output, axis=1, keepdims=True) for output in outputs)


class ReadsOutputs:
    """Keeps a step from MXNet's Executor: the outputs are copied out of the graph."""

    def batch_end(self, estimator: Any, pred: Any, **arguments: Any) -> None:
        """Do nothing."""


WAYS: dict[str, tuple[int, Any, list[Any]]] = {  # how often each batch is read, balance, handlers
    "as it is": (1, None, []),
    "outputs are read": (1, None, [ReadsOutputs()]),
    "cut": (1, Sum(), []),
    "cut, outputs are read": (1, Sum(), [ReadsOutputs()]),
    "accumulated": (2, None, []),  # as often as it is read
}


RUNS = {
    "mxnet": {"engine": "mxnet"},
    "torch": {"engine": "torch", "compile": False},
    "torch, captured": {"engine": "torch", "compile": "cudagraphs"},
}


def new_net(random: np.random.RandomState) -> Net:
    graph = random_graph(random, variables=4)
    return Net(graph, random.randint(4, 4 + len(graph.operators)))


def objective(net: Any, x: Any, z: Any, a: Any, b: Any) -> Any:
    one, other = net(x, z)
    return L2(one, a) + L2(other, b)


@pytest.mark.parametrize("engine", RUNS)
@pytest.mark.parametrize("way", WAYS)
def test_random_nets(
    way: str, engine: str, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine != "mxnet":
        pytest.importorskip("torch")
    times, balance, handlers = WAYS[way]
    if engine == "torch, captured":
        from tests.torch.native.cuda_graphs import counted_replays

        replays = counted_replays(monkeypatch)
    for seed in range(NETS):
        nets = []
        for _ in range(2):
            random = np.random.RandomState(pytestconfig.getoption("fuzz_seed") * NETS + seed)
            seed_everything(seed)
            nets.append(new_net(random))
            nets[-1].initialize()
        shapes = [SHAPE, SHAPE, (SHAPE[0], 1), (SHAPE[0], 1)]
        batches = [tuple(random.normal(size=shape).astype("float32") for shape in shapes) for _ in range(3)]
        net, by_hand = nets
        train_by_hand(by_hand, trainer_of(by_hand, options=RATE), batches, objective)
        net.hybridize()
        repeated = [batch for batch in batches for _ in range(times)]
        trainer = TrainerSpec(".*", "sgd", RATE)
        how = {"balance": balance, "accumulate": times, **RUNS[engine]}
        estimator = MultiEstimator(net, SPEC, trainer, **how)
        estimator.fit(repeated, epochs=1, event_handlers=[*SILENT, *handlers])
        assert_same_parameters(net, by_hand, rtol=1e-3, atol=1e-4)
    if engine == "torch, captured":
        assert replays.count


def test_icnet() -> None:
    """ICNet has three resolutions (Zhao et al., 2018); its loss ignores the gradients that it receives."""
    random, side, classes = np.random.RandomState(0), 64, 3
    loss = ICNetLoss(crop_size=side)
    outputs = ["whole", "quarter", "eighth", "sixteenth"]
    losses = {"map": LossSpec(loss, outputs, "map")}
    spec = TaskSpec(inputs=["image"], outputs=outputs, labels=["map"], losses=losses)
    batches = [
        (random.randn(2, 3, side, side).astype("float32"), random.randint(-1, classes, (2, side, side)) * 1.0)
        for _ in range(3)
    ]

    def make() -> Any:
        net = ICNet(classes, "resnet50", pretrained_base=False, crop_size=side)
        return net.apply(_without_dropout)

    def objective(net: Any, image: Any, labels: Any) -> Any:
        return loss(*net(image), labels)

    assert_trains_as_by_hand(make, spec, batches, objective, None, True, "sgd", {"learning_rate": 1e-4})


def _without_dropout(block: Any) -> None:
    if isinstance(block, gluon.nn.Dropout):
        block._rate = 0
