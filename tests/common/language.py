"""A language model whose state is carried from batch to batch."""

from typing import Any

import numpy as np

from multifit import LossSpec, MetricSpec, TaskSpec
from tests.common.grids import ONE
from tests.common.nets import hybridized

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn, rnn  # isort: skip

WORDS, UNITS, SAMPLES = 7, 5, 4
TEXT = np.random.RandomState(0).randint(0, WORDS, (25, SAMPLES)).astype("float32")
# Batches of four words, of four texts each, one after the other: (time, samples).
BATCHES = [(TEXT[i : i + 4], TEXT[i + 1 : i + 5]) for i in range(0, 24, 4)]
STATE = {"hidden": (1, 0, UNITS), "cell": (1, 0, UNITS)}
KEPT = {"hidden": (1, 0, UNITS), "cell": (1, 0, 1)}  # of Keeps


class LanguageModel(gluon.HybridBlock):
    """A language model: words (T, N) and the state of an LSTM, to logits (T, N, words) and the new state."""

    def __init__(self, units: int = UNITS) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(WORDS, 3), rnn.LSTM(units, input_size=3)
        self.words = nn.Dense(WORDS, flatten=False, in_units=units)

    def hybrid_forward(self, F: Any, words: Any, hidden: Any, cell: Any) -> Any:
        output, state = self.lstm(self.embed(words), [hidden, cell])
        return self.words(output), state


class Keeps(LanguageModel):
    """Carries a parameter, and the last words of a batch."""

    def __init__(self, units: int = UNITS) -> None:
        super().__init__(units)
        self.start = self.params.get("start", shape=(1, SAMPLES, UNITS), init=mx.init.Normal(0.5))

    def hybrid_forward(self, F: Any, words: Any, hidden: Any, cell: Any, start: Any) -> Any:
        cells = F.broadcast_axis(cell / WORDS, axis=2, size=UNITS)
        logits, _ = super().hybrid_forward(F, words, hidden - start, cells)
        return logits, [start, F.slice_axis(words, axis=0, begin=3, end=4).expand_dims(2)]


def make_net(
    contexts: Any = ONE,
    hybrid: bool = True,
    units: int = UNITS,
    dtype: str = "float32",
    kind: Any = LanguageModel,
) -> Any:
    """Return a net that is the same in every call."""
    mx.random.seed(3)
    net = kind(units)
    net.cast(dtype)
    net.initialize(mx.init.Xavier(), ctx=contexts)
    return hybridized(net, hybrid)


def make_spec(**changes: Any) -> TaskSpec:
    """Return its spec, with other fields where they are given."""
    loss = gluon.loss.SoftmaxCrossEntropyLoss(batch_axis=1)
    declared: dict[str, Any] = {
        "inputs": ["words", "hidden", "cell"],
        "outputs": ["logits", ["hidden", "cell"]],
        "labels": ["next"],
        "losses": {"next": LossSpec(loss, "logits", "next")},
        "metrics": {"accuracy": MetricSpec(mx.metric.Accuracy(axis=2), "logits", "next")},
        "state": STATE,
    }
    return TaskSpec(**{**declared, **changes})
