"""Outputs and losses are handed out where somebody looks at them, and are nobody's cost where not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.gluon.execution.step_graph import StepGraph

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, nd  # isort: skip

L2 = gluon.loss.L2Loss()


class Heads(gluon.nn.HybridBlock):
    """Two heads behind dropout of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = gluon.nn.Dense(8, in_units=3, activation="tanh")
        self.left, self.right = gluon.nn.HybridSequential(), gluon.nn.HybridSequential()
        for head in (self.left, self.right):
            head.add(gluon.nn.Dropout(0.5), gluon.nn.Dense(1, in_units=8))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        body = self.body(x)
        return self.left(body), self.right(body)


def heads(seed: int = 0) -> Heads:
    mx.random.seed(seed)
    net = Heads()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


def spec(order: tuple[str, ...] = ("left", "right")) -> TaskSpec:
    return TaskSpec(
        inputs=["x"], outputs=["left", "right"], labels=["left", "right"],
        losses={name: LossSpec(L2) for name in order},
        metrics={"mae": MetricSpec(mx.metric.MAE(), "left", "left")},
    )  # fmt: skip


def data(batches: int = 5) -> list[tuple[Any, ...]]:
    random = np.random.RandomState(1)
    return [tuple(nd.array(random.normal(size=(6, n))) for n in (3, 1, 1)) for _ in range(batches)]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the batches behind the first of a fit handed out their outputs."""
    found: list[bool] = []
    run = StepGraph.run

    def recorded(self: StepGraph, *args: Any) -> Any:
        result = run(self, *args)
        found.append(bool(result[0]) and bool(result[1][0].parts))
        return result

    monkeypatch.setattr(StepGraph, "run", recorded)
    return found


def estimator(kind: type[MultiEstimator] = MultiEstimator, **options: Any) -> MultiEstimator:
    return kind(heads(), spec(), TrainerSpec(".*", "sgd", {"learning_rate": 0.1}), **options)


class Blind:
    """Looks at nothing, whatever it is called with."""

    def batch_end(self, estimator: Any, **_: Any) -> None:
        """Do nothing."""


class Looking:
    """Keeps what it sees."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def batch_end(self, estimator: Any, pred: Any, loss: Any) -> None:
        """Keep the outputs and losses."""
        self.seen.append((pred, loss))


class Everything(Looking):
    """Takes all there is, as Gluon's own handlers do."""

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        """Keep the outputs and losses."""
        self.seen.append((kwargs["pred"], kwargs["loss"]))


class Holding(Looking):
    """Looks at the losses where it may hold an update back."""

    batch_end = None  # type: ignore[assignment]

    def hold_update(self, estimator: Any, loss: Any) -> bool:
        """Keep the losses."""
        self.seen.append((None, loss))
        return False


class Own(MultiEstimator):
    """An estimator that looks for itself."""

    def fit_batch(self, batch: Any) -> Any:
        """Look at what came of the batch."""
        result = super().fit_batch(batch)
        assert set(result.outputs[0]) == {"left", "right"} and set(result.parts[0]) == {"left", "right"}
        return result


@pytest.mark.parametrize("handler", [None, Blind()], ids=["none", "blind"])
def test_nobody_looks(shown: list[bool], handler: Any) -> None:
    history = estimator().fit(data(), epochs=2, event_handlers=[handler] if handler else [])
    assert shown == [False] * 9
    assert history["train_loss"][1] < history["train_loss"][0]


@pytest.mark.parametrize("kind", [Looking, Everything, Holding])
def test_somebody_looks(shown: list[bool], kind: type[Looking]) -> None:
    handler = kind()
    estimator().fit(data(), epochs=2, event_handlers=handler)
    assert shown == [True] * 9 and len(handler.seen) == 10
    for pred, loss in handler.seen:
        assert pred is None or [pred[name][0].shape for name in ("left", "right")] == [(6, 1)] * 2
        assert [loss[name][0].shape for name in ("left", "right")] == [(6,)] * 2


def test_an_estimator_of_ones_own_looks(shown: list[bool]) -> None:
    estimator(Own).fit(data(), epochs=1)
    assert shown == [True] * 4


def test_a_batch_that_is_trained_by_hand_shows_all(shown: list[bool]) -> None:
    mine = estimator()
    mine.fit(data(), epochs=1)
    assert shown == [False] * 4
    result = mine.evaluate_batch(data()[0])
    assert set(result.outputs[0]) == {"left", "right"}


def test_an_evaluation_asks_its_own_handlers(shown: list[bool]) -> None:
    mine, looking = estimator(), Looking()
    looking.evaluate_batch_end = looking.batch_end  # type: ignore[attr-defined]
    first = mine.evaluate(data(), event_handlers=[Blind()])
    assert shown == [False] * 4
    second = mine.evaluate(data(), event_handlers=[looking])
    assert shown == [False] * 4 + [True] * 5 and len(looking.seen) == 5
    assert first == pytest.approx(second, rel=1e-6)


@pytest.mark.parametrize("order", [("left", "right"), ("right", "left")], ids="-".join)
def test_dropout_draws_as_in_the_loop_by_hand(order: tuple[str, ...]) -> None:
    """Also where the losses come in another order than the outputs that nobody looks at."""
    net = heads()
    mx.random.seed(7)
    MultiEstimator(net, spec(order), TrainerSpec(".*", "sgd", {"learning_rate": 0.1})).fit(data(), epochs=2)
    other = heads()
    trainer = gluon.Trainer(other.collect_params(), "sgd", {"learning_rate": 0.1})
    mx.random.seed(7)
    for x, left, right in data() * 2:
        with autograd.record():
            outputs = other(x)
            losses = [L2(*pair) for pair in zip(outputs, (left, right))]
        autograd.backward(losses)
        trainer.step(6)
    for a, b in zip(net.collect_params().values(), other.collect_params().values()):
        np.testing.assert_allclose(a.data().asnumpy(), b.data().asnumpy(), rtol=2e-4, atol=2e-5)
