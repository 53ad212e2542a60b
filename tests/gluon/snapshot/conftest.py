"""Small engines on one or two devices, and steps through them as a fit makes them."""

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
from mxnet.gluon import nn  # isort: skip


class Net(gluon.HybridBlock):
    """Two heads on a body with dropout and BatchNorm; its shapes are deferred."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.HybridSequential()
        self.body.add(nn.Dense(8, activation="relu"), nn.BatchNorm(), nn.Dropout(0.3))
        self.digit = nn.Dense(3)
        self.size = nn.Dense(1)

    def hybrid_forward(self, F: Any, image: Any) -> Any:
        features = self.body(image)
        return self.digit(features), self.size(features)


class Moving(gluon.loss.Loss):
    """A loss with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__(1.0, 0)
        self.bias = self.params.get("bias", shape=(1,), init="zeros")

    def hybrid_forward(self, F: Any, output: Any, label: Any, bias: Any) -> Any:
        return F.mean(F.square(F.broadcast_add(output, bias) - label), axis=0, exclude=True)


def make_spec(**changes: Any) -> TaskSpec:
    declared: dict[str, Any] = {
        "inputs": ["image"],
        "outputs": ["digit", "size"],
        "labels": ["digit", "size"],
        "losses": {"digit": gluon.loss.SoftmaxCrossEntropyLoss(), "size": LossSpec(Moving(), weight=0.5)},
        "metrics": {
            "accuracy": MetricSpec(mx.metric.Accuracy(), "digit", "digit"),
            "error": MetricSpec(lambda labels, outputs: abs(labels - outputs).mean(), "size", "size"),
        },
    }
    return TaskSpec(**{**declared, **changes})


def two_trainers() -> dict[str, TrainerSpec]:
    return {
        "body": TrainerSpec(
            "body.*", "adam", {"learning_rate": 0.01}, mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.01)
        ),
        "heads": TrainerSpec("(digit|size|losses).*", "sgd", {"learning_rate": 0.1, "momentum": 0.9}),
    }


@pytest.fixture
def make_engine() -> Callable[..., Engine]:
    """Return ``make_engine(devices=1, trainers=None, net=None, **changes of the spec)``."""

    def make(devices: int = 1, trainers: Any = None, net: Any = None, **changes: Any) -> Engine:
        net = Net() if net is None else net
        contexts = [mx.cpu(i) for i in range(devices)]
        trainers = two_trainers() if trainers is None else trainers
        return new_engine(net, make_spec(**changes), trainers, contexts)

    return make


@pytest.fixture
def make_net() -> Callable[[int], Any]:
    """Return ``make_net(devices)``: an initialised net, and losses, for trainers of the user's own."""

    def make(devices: int) -> Any:
        net, moving = Net(), Moving()
        for block in (net, moving):
            block.initialize(ctx=[mx.cpu(i) for i in range(devices)])
        return net, {"digit": gluon.loss.SoftmaxCrossEntropyLoss(), "size": moving}

    return make


@pytest.fixture
def batches() -> list[tuple[np.ndarray, ...]]:
    """Return six batches; the fourth is smaller."""
    found = []
    for size in (8, 8, 8, 5, 8, 8):
        image = np.random.randn(size, 6).astype("float32")
        found.append((image, image[:, :3].argmax(axis=1).astype("float32"), image[:, 3:4] * 2))
    return found


@pytest.fixture
def train() -> Callable[..., None]:
    """Return ``train(engine, batches, first)``: steps, each behind a seed of its own."""

    def step(engine: Engine, batches: list[Any], first: int = 0) -> None:
        stage = engine.stages["train"]
        for place, batch in enumerate(batches, first):
            mx.random.seed(100 + place)
            if stage.graphs.first is None:
                result = dry_run(engine, batch).train
                TrainStep(engine).learn(result)
            else:
                result = stage.run(engine.splitter("train").split(batch), engine.state)
                TrainStep(engine).learn(result)
                stage.measure(result)

    return step


@pytest.fixture
def everything() -> Callable[[Engine], dict[str, bytes]]:
    """Return ``everything(engine)``: the bytes of all parameters and optimizer states, on all devices."""

    def read(engine: Engine) -> dict[str, bytes]:
        found = {
            f"{name}@{data.context}": data.asnumpy().tobytes()
            for name, p in engine.model.parameters.items()
            for data in p.list_data()
        }
        for name, trainer in engine.trainers.get().items():
            for number, updater in enumerate(trainer._updaters):
                for i, state in updater.states.items():
                    leaves = state if isinstance(state, tuple) else (state,)
                    found[f"{name}/{number}/{i}"] = b"".join(leaf.asnumpy().tobytes() for leaf in leaves)
        return found

    return read
