"""Small engines on one or several devices, and steps through them as a fit makes them."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from multifit import LossSpec, MetricSpec, TaskSpec, TrainerSpec
from multifit.engines import TrainStep
from multifit.gluon.check.dry_run import dry_run
from multifit.gluon.session import Session
from tests.common.nets import normed_heads
from tests.common.specs import CE, two_head_spec
from tests.engines import new_engine

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip


class BiasedL2(gluon.loss.Loss):
    """A loss with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__(1.0, 0)
        self.bias = self.params.get("bias", shape=(1,), init="zeros")

    def hybrid_forward(self, F: Any, output: Any, label: Any, bias: Any) -> Any:
        return F.mean(F.square(F.broadcast_add(output, bias) - label), axis=0, exclude=True)


def distance(labels: Any, outputs: Any) -> Any:
    return abs(labels - outputs).mean()


def make_spec(**changes: Any) -> TaskSpec:
    declared: dict[str, Any] = {
        "losses": {"digit": CE, "size": LossSpec(BiasedL2(), weight=0.5)},
        "metrics": {
            "accuracy": MetricSpec(mx.metric.Accuracy(), "digit", "digit"),
            "error": MetricSpec(distance, "size", "size"),
        },
    }
    return two_head_spec(**{**declared, **changes})


def two_trainers() -> dict[str, TrainerSpec]:
    schedule = mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.01)
    return {
        "body": TrainerSpec("body.*", "adam", {"learning_rate": 0.01}, schedule),
        "heads": TrainerSpec("(digit|size|losses).*", "sgd", {"learning_rate": 0.1, "momentum": 0.9}),
    }


def make_engine(devices: int = 1, trainers: Any = None, net: Any = None, **changes: Any) -> Session:
    """Return an engine for two heads on a body with dropout and BatchNorm; `changes` are the spec's."""
    contexts = [mx.cpu(i) for i in range(devices)]
    trainers = two_trainers() if trainers is None else trainers
    return new_engine(normed_heads() if net is None else net, make_spec(**changes), trainers, contexts)


def make_batches(sizes: Iterable[int] = (8, 8, 8, 5, 8, 8)) -> list[tuple[np.ndarray, ...]]:
    images = [np.random.randn(size, 6).astype("float32") for size in sizes]
    return [(image, image[:, :3].argmax(axis=1).astype("float32"), image[:, 3:4] * 2) for image in images]


def train(engine: Session, batches: list[Any], first: int = 0) -> None:
    """Train; each step has a seed of its own, counted from `first`."""
    for place, batch in enumerate(batches, first):
        mx.random.seed(100 + place)
        step(engine, batch)


def step(engine: Session, batch: Any) -> Any:
    """Train on one batch, the first one of a fit as its check; return its result."""
    stage = engine.stages["train"]
    if stage.graphs.first is None:
        result = dry_run(engine, batch).train
        TrainStep(engine).learn(result)
    else:
        result = stage.run(engine.splitter("train").split(batch), engine.state)
        TrainStep(engine).learn(result)
        stage.measure(result)
    return result


def everything(engine: Session) -> dict[str, bytes]:
    """Return the bytes of all parameters and optimizer states, on all devices."""
    values = {
        f"{name}@{data.context}": data.asnumpy().tobytes()
        for name, parameter in engine.model.parameters.items()
        for data in parameter.list_data()
    }
    for name, trainer in engine.trainers.get().items():
        for number, updater in enumerate(trainer._updaters):
            for i, state in updater.states.items():
                leaves = state if isinstance(state, tuple) else (state,)
                values[f"{name}/{number}/{i}"] = b"".join(leaf.asnumpy().tobytes() for leaf in leaves)
    return values
