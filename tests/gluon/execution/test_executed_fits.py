"""Small nets, on Executors where these suit: fits always have the numbers of the hand-written loop."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from multifit import MultiEstimator, TaskSpec, TrainerSpec
from multifit.balance import Sum
from tests.common.compare import assert_same_parameters, twins
from tests.common.hand_loop import SILENT, train_by_hand, trainer_of
from tests.common.nets import Heads
from tests.common.specs import CE, L2

from mxnet import gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

RNG = np.random.RandomState(7)
SIZES = [8, 8, 8, 8, 4, 8]
RATE = {"learning_rate": 0.1}
BATCHES = [
    (RNG.normal(size=(n, 5)).astype("float32"), RNG.randint(0, 3, n), RNG.normal(size=(n, 1))) for n in SIZES
]
IDS = [(np.arange(3 * n).reshape(n, 3) % 300, *labels) for n, (_, *labels) in zip(SIZES, BATCHES)]

Batches = Sequence[Sequence[np.ndarray]]


class Refilled:
    """Yields the same NDArrays with every batch, filled anew, as loaders do that allocate memory once."""

    def __init__(self, batches: Batches) -> None:
        self._batches = [batch for batch in batches if len(batch[0]) == SIZES[0]]
        self._arrays = [nd.empty(array.shape) for array in batches[0]]

    def __iter__(self) -> Iterator[list[Any]]:
        for batch in self._batches:
            for array, values in zip(self._arrays, batch):
                array[:] = nd.array(values)
            yield self._arrays


def as_is(batches: Batches, *dtypes: str) -> list[list[Any]]:
    """Return batches as NDArrays; the inputs have one dtype after the other."""
    kinds = [dtypes[at // 3 % len(dtypes)] if dtypes else "float32" for at in range(len(batches))]
    return [[nd.array(x, dtype=kind), *map(nd.array, labels)] for (x, *labels), kind in zip(batches, kinds)]


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


def embedding() -> Any:
    """Return a net of identity numbers."""
    return Heads(body=nn.Embedding(300, 4), digit=3, size=1)


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any], Any]] = {
    "as they are": (lambda: Heads(digit=3, size=1), lambda: as_is(BATCHES), L2),
    "arrays that are filled anew": (lambda: Heads(digit=3, size=1), lambda: Refilled(BATCHES), L2),
    "another dtype": (embedding, lambda: as_is(IDS, "uint8", "int32"), L2),
    "a loop": (lambda: Loop(digit=3, size=1), lambda: as_is(BATCHES), L2),
    "a loss of some samples": (lambda: Heads(digit=3, size=1), lambda: as_is(BATCHES), Masked()),
}


@pytest.mark.parametrize(
    ("case", "balance"),
    [*((case, None) for case in CASES), ("arrays that are filled anew", Sum), ("another dtype", Sum)],
)
def test_a_fit_has_the_numbers_of_the_hand_written_loop(case: str, balance: Any) -> None:
    make, batches, loss = CASES[case]
    net, other = twins(make, next(iter(batches()))[0].asnumpy())
    net.hybridize()  # the other is not, as MXNet's gradients of some hybridized nets are wrong
    losses = {"digit": CE, "size": loss}
    spec = TaskSpec(inputs=["x"], outputs=["digit", "size"], labels=["digit", "size"], losses=losses)
    estimator = MultiEstimator(net, spec, TrainerSpec(".*", "sgd", RATE), balance=balance and balance())
    estimator.fit(batches(), epochs=1, event_handlers=SILENT)

    def objective(net: Any, x: Any, digit: Any, size: Any) -> Any:
        digits, sizes = net(x)
        per_sample = 1 if isinstance(loss, gluon.loss.L2Loss) else len(x)
        return nd.sum(CE(digits, digit)) + nd.sum(loss(sizes, size)) * per_sample

    train_by_hand(other, trainer_of(other, "sgd", RATE), batches(), objective)
    assert_same_parameters(net, other, rtol=1e-5, atol=1e-6)
