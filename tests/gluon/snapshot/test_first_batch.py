"""A fit's first batch, which runs operator by operator, gives bit for bit what the graph of the others gives.

A run that goes on amid an epoch proves its first batch, where the uninterrupted run had its graphs already.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

from multifit import LossSpec, MetricSpec, TaskSpec, TrainerSpec
from multifit.gluon.engine import Engine
from multifit.gluon.train_step import TrainStep
from multifit.gluon.validation.dry_run import dry_run
from tests.engines import new_engine

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn, rnn  # isort: skip


def sequential(*layers: Any) -> Any:
    net = nn.HybridSequential()
    net.add(*layers)
    return net


def mlp() -> Any:
    return sequential(
        nn.Dense(32, activation="relu"), nn.Dropout(0.5), nn.Dense(16), nn.Dropout(0.3), nn.Dense(4)
    )


def lenet() -> Any:
    first = nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(2, 2)
    second = nn.Conv2D(6, 3), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(2, 2)
    return sequential(*first, *second, nn.Dense(16), nn.Dropout(0.4), nn.Dense(4))


class Heads(gluon.HybridBlock):
    """Three heads on one body, whose gradients meet there."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.drop = nn.Dense(16, activation="tanh"), nn.Dropout(0.5)
        self.heads = sequential(*[nn.Dense(4) for _ in range(3)])

    def hybrid_forward(self, F: Any, data: Any) -> Any:
        features = self.drop(self.body(data))
        return [head(features) for head in self.heads]


class Lstm(gluon.HybridBlock):
    """Two layers, both directions, dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.drop, self.out = nn.Embedding(20, 8), nn.Dropout(0.3), nn.Dense(4)
        self.lstm = rnn.LSTM(8, 2, dropout=0.3, layout="NTC", bidirectional=True)

    def hybrid_forward(self, F: Any, data: Any) -> Any:
        return self.out(self.drop(F.mean(self.lstm(self.words(data)), axis=1)))


SHAPES: dict[Callable[[], Any], tuple[int, ...]] = {mlp: (6,), lenet: (1, 14, 14), Heads: (6,), Lstm: (5,)}


def made(make: Callable[[], Any], hybridized: bool, devices: int) -> Engine:
    mx.random.seed(3)
    net, names = make(), ["a", "b", "c"] if make is Heads else ["a"]
    if hybridized:
        net.hybridize()
    losses = {
        name: LossSpec(gluon.loss.SoftmaxCrossEntropyLoss(), name, name, weight=0.1 + i)
        for i, name in enumerate(names)
    }
    metrics = {"accuracy": MetricSpec(mx.metric.Accuracy(), "a", "a")}
    spec = TaskSpec(names, names, losses, metrics)
    contexts = [mx.cpu(i) for i in range(devices)]
    trainer = TrainerSpec(".*", "adam", {"learning_rate": 0.01})
    return new_engine(net, spec, trainer, contexts)


def passed(engine: Engine, batches: list[Any], proved: set[int]) -> list[dict[str, bytes]]:
    """Train; of the batches in `proved` each is the first of a fit. Return all bytes behind each batch."""
    seen = []
    for place, batch in enumerate(batches):
        mx.random.seed(place)
        if place in proved:
            engine.restart()
            result = dry_run(engine, batch).train
        else:
            engine.stages["train"].reset()
            result = engine.stages["train"].run(engine.splitter("train").split(batch), engine.state)
        TrainStep(engine).learn(result)
        found: dict[str, Any] = dict(engine.stages["train"].figures.sums.read())
        for i, (outputs, parts) in enumerate(zip(result.outputs, result.parts)):
            found.update({f"{what} {i}": array for what, array in [*outputs.items(), *parts.items()]})
        for name, parameter in engine.model.parameters.items():
            found.update({f"{name} {i}": array for i, array in enumerate(parameter.list_data())})
            grads = parameter.list_grad() if parameter.grad_req != "null" else []
            found.update({f"gradient of {name} {i}": array for i, array in enumerate(grads)})
        arrays = {n: a.asnumpy() if isinstance(a, mx.nd.NDArray) else a for n, a in found.items()}
        seen.append({name: array.tobytes() for name, array in arrays.items()})
    return seen


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("make", list(SHAPES))
def test_a_first_batch_is_like_any_other(make, hybridized, devices):
    labels = 3 if make is Heads else 1
    batches = []
    for size in (8, 8, 5, 8):
        data = np.random.randint(0, 20, (size, *SHAPES[make])).astype("float32")
        batches.append((data, *(np.random.randint(0, 4, size).astype("float32") for _ in range(labels))))
    once = made(make, hybridized, devices)
    graphed = passed(once, batches, {0})
    assert once.stages["train"].graphs.first._is_graph  # else the two would be the same
    assert passed(made(make, hybridized, devices), batches, {0, 1, 2, 3}) == graphed
