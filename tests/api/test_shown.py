"""Outputs and losses are handed out only where a handler or a subclass reads them."""

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.gluon.step.step_graph import StepGraph
from tests.common.compare import assert_same_parameters
from tests.common.hand_loop import check_by_hand, trainer_of
from tests.common.nets import hybridized
from tests.common.specs import L2

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, nd  # isort: skip

SGD = {"learning_rate": 0.1}


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


def heads() -> Heads:
    mx.random.seed(0)
    net = hybridized(Heads())
    net.initialize(mx.init.Xavier())
    return net


def spec(order: tuple[str, ...] = ("left", "right")) -> TaskSpec:
    return TaskSpec(
        inputs=["x"], outputs=["left", "right"], labels=["left", "right"],
        losses={name: LossSpec(L2) for name in order},
        metrics={"mae": MetricSpec(mx.metric.MAE(), "left", "left")},
    )  # fmt: skip


def data() -> list[tuple[Any, ...]]:
    random = np.random.RandomState(1)
    return [tuple(nd.array(random.normal(size=(6, n))) for n in (3, 1, 1)) for _ in range(3)]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each batch handed out its outputs."""
    results: list[bool] = []
    run = StepGraph.run

    def recorded(self: StepGraph, *args: Any) -> Any:
        result = run(self, *args)
        results.append(bool(result.outputs) and bool(result.parts))
        return result

    monkeypatch.setattr(StepGraph, "run", recorded)
    return results


def estimator(kind: type[MultiEstimator] = MultiEstimator) -> MultiEstimator:
    return kind(heads(), spec(), TrainerSpec(".*", "sgd", SGD))


class Blind:
    """Reads nothing, whatever it is called with."""

    def batch_end(self, estimator: Any, **_: Any) -> None:
        """Do nothing."""


class Looking:
    """Keeps the outputs and losses."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def batch_end(self, estimator: Any, pred: Any, loss: Any) -> None:
        self.seen.append((pred, loss))


class Everything(Looking):
    """Takes all there is, as Gluon's own handlers do."""

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        self.seen.append((kwargs["pred"], kwargs["loss"]))


class Holding(Looking):
    """Reads the losses where it may hold an update back."""

    batch_end = None  # type: ignore[assignment]

    def hold_update(self, estimator: Any, loss: Any) -> bool:
        self.seen.append((None, loss))
        return False


class Own(MultiEstimator):
    """Reads the result of a batch itself."""

    def fit_batch(self, batch: Any) -> Any:
        result = super().fit_batch(batch)
        assert set(result.outputs[0]) == {"left", "right"} and set(result.parts[0]) == {"left", "right"}
        return result


def test_outputs_that_nobody_reads_are_not_handed_out(shown: list[bool]) -> None:
    trained = estimator()
    history = trained.fit(data(), epochs=2, event_handlers=Blind())
    assert shown == [False] * 6
    assert history["train_loss"][1] < history["train_loss"][0]
    assert set(trained.evaluate_batch(data()[0]).outputs[0]) == {"left", "right"}  # called by hand: all


@pytest.mark.parametrize("kind", [Looking, Everything, Holding])
def test_handlers_and_subclasses_get_what_they_read(shown: list[bool], kind: type[Looking]) -> None:
    handler = kind()
    estimator().fit(data(), epochs=2, event_handlers=handler)
    assert shown == [True] * 6 and len(handler.seen) == 6
    for pred, loss in handler.seen:
        assert pred is None or [pred[name][0].shape for name in ("left", "right")] == [(6, 1)] * 2
        assert [loss[name][0].shape for name in ("left", "right")] == [(6,)] * 2
    estimator(Own).fit(data(), epochs=1)
    assert shown == [True] * 9


def test_an_evaluation_asks_its_own_handlers(shown: list[bool]) -> None:
    evaluating, looking = estimator(), Looking()
    looking.evaluate_batch_end = looking.batch_end  # type: ignore[attr-defined]
    first = evaluating.evaluate(data(), event_handlers=[Blind()])
    assert shown == [False] * 3
    second = evaluating.evaluate(data(), event_handlers=[looking])
    assert shown == [False] * 3 + [True] * 3 and len(looking.seen) == 3
    assert first == pytest.approx(second, rel=1e-6)


@pytest.mark.parametrize("order", [("left", "right"), ("right", "left")], ids="-".join)
def test_dropout_draws_as_in_the_loop_by_hand(order: tuple[str, ...]) -> None:
    """Also where the losses come in another order than the outputs that nobody reads."""
    net = heads()
    mx.random.seed(7)
    MultiEstimator(net, spec(order), TrainerSpec(".*", "sgd", SGD)).fit(data(), epochs=2)
    hand = heads()
    trainer = trainer_of(hand, options=SGD)
    mx.random.seed(7)
    check_by_hand(hand, data()[0][0])
    for x, left, right in data() * 2:
        with autograd.record():
            losses = [L2(*pair) for pair in zip(hand(x), (left, right))]
        autograd.backward(losses)
        trainer.step(6)
    assert_same_parameters(net, hand)
