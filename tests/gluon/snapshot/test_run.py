"""A run that is written in the middle of an epoch and read in a new engine continues bit for bit."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MetricSpec, TaskSpec, TrainerSpec
from multifit.gluon.session import Session
from multifit.gluon.snapshot.snapshot import Snapshot
from tests.common.grids import ONE, TWO
from tests.common.nets import Heads, hybridized, normed_heads, sequential
from tests.common.specs import CE
from tests.engines import new_engine

from .runs import BiasedL2, everything, make_batches, make_engine, step, train

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn, rnn  # isort: skip

FILES = {
    "devices.json", "figures.json", "figures.npz", "identity.json", "labels.json", "losses.params",
    "net.params", "random.json", "random.npz", "trainers.json", "trainers.npz",
}  # fmt: skip


def interrupt(folder: Path, whole: Session, resumed: Session, batches: Any, at: int) -> None:
    """Train one engine, write it at a batch, and read it in the other; train both to the end."""
    train(whole, batches[:at])
    Snapshot(whole).write(folder)
    train(whole, batches[at:], at)
    np.random.rand(), random.random()
    assert Snapshot(resumed).read(folder) == []
    train(resumed, batches[at:], at)


def sums(engine: Session) -> Any:
    figures = engine.stages["train"].figures
    return figures.read(), figures.sums.batches, figures.sums.samples


@pytest.mark.parametrize(
    ("devices", "hybrid", "at", "weight", "dtype"),
    [
        (1, False, 4, 0.25, "float32"),
        (2, True, 1, 0.5, "float64"),
        (3, True, 2, lambda state: 0.5, "float32"),
    ],
    ids=["one", "two", "three"],
)
def test_it_continues_bit_for_bit(
    tmp_path: Path, devices: int, hybrid: bool, at: int, weight: Any, dtype: str
) -> None:
    losses = {
        "digit": CE,
        "size": LossSpec(BiasedL2(), weight=weight, normalize_by=lambda slots: slots["size"] != 0),
    }
    nets = [hybridized(normed_heads(), hybrid) for _ in range(2)]
    for block in (*nets, losses["size"].fn):
        block.cast(dtype)
    whole, resumed = (make_engine(devices, net=net, losses=losses) for net in nets)
    interrupt(tmp_path, whole, resumed, make_batches(), at)
    assert everything(resumed) == everything(whole)
    assert sums(resumed) == sums(whole)
    assert sums(whole)[1:] == (6, 45)
    assert resumed.trainers.learning_rates() == whole.trainers.learning_rates()
    assert {path.name for path in tmp_path.iterdir()} - {"devices.npz"} == FILES
    assert (tmp_path / "devices.npz").exists() == (devices > 1)


def test_a_trainer_built_by_the_user_continues_bit_for_bit(tmp_path: Path) -> None:
    engines = []
    for _ in range(2):
        net, loss = normed_heads(), BiasedL2()
        for block in (net, loss):
            block.initialize(ctx=TWO)
        parameters = {**net.collect_params(), **loss.collect_params()}
        trainer = gluon.Trainer(parameters, "adam", {"learning_rate": 0.01})
        engines.append(make_engine(2, trainer, net, losses={"digit": CE, "size": loss}))
    interrupt(tmp_path, *engines, make_batches(), 3)
    assert everything(engines[1]) == everything(engines[0])


class OwnOptimizer(mx.optimizer.SGD):
    """A user's optimizer."""


def test_what_starts_anew_is_named(tmp_path: Path) -> None:
    trainers = (TrainerSpec(".*", OwnOptimizer(learning_rate=0.1)) for _ in range(2))
    one, other = (make_engine(trainers=each) for each in trainers)
    train(one, make_batches([8]))
    Snapshot(one).write(tmp_path)
    assert Snapshot(other).read(tmp_path) == [
        'trainers["trainer"]: OwnOptimizer has no state_dict and load_state_dict, so only numbers among its '
        "attributes are restored"
    ]


# ---- what the first batch after a resume could do differently ----------------------------------------------

LABELS = {"flat": (8,), "column": (8, 1)}  # on the device F1 takes flat labels only


@pytest.mark.parametrize(
    ("kinds", "at"), [("flat column flat", 1), ("flat column flat", 2), ("column flat", 1)]
)
def test_a_metric_whose_sums_left_the_device_continues(tmp_path: Path, kinds: str, at: int) -> None:
    batches = [
        (np.random.randn(8, 4).astype("float32"), np.random.randint(0, 2, LABELS[kind]).astype("float32"))
        for kind in kinds.split()
    ]
    declared = {
        "inputs": ["data"], "outputs": ["o"], "labels": ["l"], "losses": {"ce": LossSpec(CE, "o", "l")},
        "metrics": {"f1": MetricSpec(mx.metric.F1(), "o", "l")},
    }  # fmt: skip
    whole, resumed = (make_engine(1, TrainerSpec(".*"), nn.Dense(2), **declared) for _ in range(2))
    interrupt(tmp_path, whole, resumed, batches, at)
    metrics = [engine.stages["train"].figures.metrics[0] for engine in (whole, resumed)]
    assert metrics[0].place == metrics[1].place
    assert sums(resumed) == sums(whole)


def lenet() -> Any:
    first = nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(2, 2)
    second = nn.Conv2D(6, 3), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(2, 2)
    return sequential(*first, *second, nn.Dense(16), nn.Dropout(0.4), nn.Dense(7))


def heads() -> Any:
    """Return heads whose gradients meet in the body."""
    body = sequential(nn.Dense(16, activation="tanh"), nn.Dropout(0.5), nn.Dense(16), nn.Dropout(0.3))
    return Heads(body=body, a=7, b=7, c=7)


class Lstm(gluon.HybridBlock):
    """Two layers, both directions, dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.drop, self.out = nn.Embedding(20, 8), nn.Dropout(0.3), nn.Dense(7)
        self.lstm = rnn.LSTM(8, 2, dropout=0.3, layout="NTC", bidirectional=True)

    def hybrid_forward(self, F: Any, data: Any) -> Any:
        return self.out(self.drop(F.mean(self.lstm(self.words(data)), axis=1)))


NETS: dict[str, Any] = {"lenet": (lenet, (1, 14, 14)), "heads": (heads, (6,)), "lstm": (Lstm, (5,))}


def train_with_checks(
    name: str, batches: list[Any], checked: set[int], contexts: Any, hybrid: bool
) -> tuple[Session, list[list[bytes]]]:
    """Train; each of the batches in `checked` is the first of a fit. Return all bytes after each batch."""
    mx.random.seed(3)
    outputs = ["a", "b", "c"][: len(batches[0]) - 1]
    losses = {output: LossSpec(CE, output, output, weight=0.1 + i) for i, output in enumerate(outputs)}
    metrics = {"accuracy": MetricSpec(mx.metric.Accuracy(), "a", "a")}
    spec = TaskSpec(outputs=outputs, labels=outputs, losses=losses, metrics=metrics)
    net = hybridized(NETS[name][0](), hybrid)
    engine = new_engine(net, spec, TrainerSpec(".*", "adam", {"learning_rate": 0.01}), contexts)
    history = []
    for place, batch in enumerate(batches):
        mx.random.seed(place)
        if place in checked:
            engine.restart()
        else:
            engine.stages["train"].reset()
        result = step(engine, batch)
        arrays = [
            each for pair in zip(result.outputs, result.parts) for values in pair for each in values.values()
        ]
        arrays += engine.stages["train"].figures.sums.read().values()
        for parameter in engine.model.parameters.values():
            arrays += parameter.list_data() + (parameter.list_grad() if parameter.grad_req != "null" else [])
        history.append([np.asarray(a.asnumpy() if hasattr(a, "asnumpy") else a).tobytes() for a in arrays])
    return engine, history


@pytest.mark.parametrize(
    ("name", "devices", "hybrid"), [("lenet", TWO, True), ("heads", ONE, True), ("lstm", TWO, False)]
)
def test_a_first_batch_computes_bit_for_bit_what_the_graph_does(
    name: str, devices: Any, hybrid: bool
) -> None:
    """A resumed run checks its first batch operator by operator; the uninterrupted run has a graph there."""
    shape, labels = NETS[name][1], 3 if name == "heads" else 1
    batches = []
    for size in (8, 8, 5, 8):
        data = np.random.randint(0, 20, (size, *shape)).astype("float32")
        batches.append((data, *(np.random.randint(0, 7, size).astype("float32") for _ in range(labels))))
    engine, graphed = train_with_checks(name, batches, {0}, devices, hybrid)
    assert engine.stages["train"].graphs.first._is_graph  # else the two would be the same
    assert train_with_checks(name, batches, {0, 1, 2, 3}, devices, hybrid)[1] == graphed
