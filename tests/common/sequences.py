"""Batches of sequences of many lengths, and nets for them."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from multifit import LabelSpec, LossSpec, MetricSpec, TaskSpec
from multifit.utils.seeding import seed_everything
from tests.common.specs import CE

import mxnet as mx  # isort: skip
from mxnet.gluon import nn  # isort: skip

LENGTHS = (3, 4, 7, 1, 5, 6, 2, 8, 3, 6)


class Sequences(nn.HybridBlock):
    """Scores of three classes, of the "mean" of a sequence or of each "token"; or of each "place" in it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind
        with self.name_scope():
            self.embed = nn.Embedding(20, 4)
            self.dense = nn.Dense(1 if kind == "place" else 3, in_units=4, flatten=False)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        embedded = self.embed(x)
        out = self.dense(F.mean(embedded, axis=1) if self._kind == "mean" else embedded)
        return F.softmax(F.squeeze(out, axis=2)) if self._kind == "place" else out


def sequence_net(kind: str, dtype: str = "float32") -> Any:
    seed_everything(1)
    net = Sequences(kind)
    net.cast(dtype)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


def sequence_spec(kind: str, missing: Any = None) -> TaskSpec:
    """Return the spec of a net. The cross entropy over places needs a graph for each length."""
    metric = mx.metric.CrossEntropy() if kind == "place" else mx.metric.Accuracy(axis=-1)
    losses, metrics = {"l": LossSpec(CE, "out", "y")}, {"m": MetricSpec(metric, "out", "y")}
    return TaskSpec(outputs="out", labels=[LabelSpec("y", missing=missing)], losses=losses, metrics=metrics)


def sequence_batches(kind: str, lengths: Iterable[int] = LENGTHS, missing: bool = False) -> list[Any]:
    """Return a batch of eight sequences for each length; some labels are -1 if they may be missing."""
    random, batches = np.random.RandomState(0), []
    for length in lengths:
        x = random.randint(0, 20, (8, length))
        y = {"mean": x[:, 0] % 3, "token": x % 3, "place": x.argmax(axis=1)}[kind].astype("float32")
        batches.append((x.astype("float32"), np.where(random.rand(8) < 0.3, -1, y) if missing else y))
    return batches
