"""Plain handlers that somebody wrote for Gluon's Estimator run in ours unchanged."""

from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon.contrib.estimator import event_handler as theirs

from multifit import MultiEstimator
from tests.common.grids import TWO
from tests.common.nets import two_heads
from tests.common.specs import CE, two_head_spec

EVENTS = ("train_begin", "epoch_begin", "batch_begin", "batch_end", "epoch_end", "train_end")


class Everything(
    theirs.TrainBegin, theirs.EpochBegin, theirs.BatchBegin, theirs.BatchEnd, theirs.EpochEnd, theirs.TrainEnd
):
    """Has a method for each of Gluon's events."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        for event in EVENTS:
            setattr(self, event, self._called_at(event))

    def _called_at(self, event: str) -> Any:
        def method(estimator: Any, *args: Any, **kwargs: Any) -> bool:
            assert (estimator.max_epoch, estimator.max_batch, estimator.context) == (1, None, TWO)
            self.calls.append((event, kwargs))
            return False

        return method


def shapes(facts: Any) -> Any:
    return {n: shapes(a) for n, a in facts.items()} if isinstance(facts, dict) else [a.shape for a in facts]


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_handler_is_called_with_gluons_arguments(outputs: int, batches: Any) -> None:
    handler = Everything()
    net, spec = (mx.gluon.nn.Dense(3), CE) if outputs == 1 else (two_heads(), two_head_spec())
    data = [batch[: outputs + 1] for batch in batches[:2]]
    MultiEstimator(net, spec, context=TWO).fit(data, epochs=1, event_handlers=handler)
    assert [event for event, _ in handler.calls] == [*EVENTS[:4], *EVENTS[2:]]
    assert list(handler.calls[2][1]) == ["batch"]
    facts = handler.calls[-3][1]
    assert facts["batch"] is data[1]
    digit, size = ([(4, 3)] * 2, [(4,)] * 2, [(4,)] * 2), ([(4, 1)] * 2, [(4, 1)] * 2, [(4,)] * 2)
    expected = digit if outputs == 1 else [{"digit": d, "size": s} for d, s in zip(digit, size)]
    assert [shapes(facts[name]) for name in ("pred", "label", "loss")] == list(expected)
    label = facts["label"] if outputs == 1 else facts["label"]["digit"]
    np.testing.assert_array_equal(np.concatenate([part.asnumpy() for part in label]), data[1][1])


def test_stopping(batches: Any) -> None:
    handler = theirs.StoppingHandler()
    estimator = MultiEstimator(two_heads(), two_head_spec())
    assert estimator.fit(batches, epochs=2, event_handlers=handler).epochs == 2
    assert (handler.max_epoch, handler.current_batch) == (2, 6)

    class Sooner(theirs.StoppingHandler):
        def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
            super().train_begin(estimator)
            self.max_batch = 4

    estimator.fit(batches, epochs=5, event_handlers=Sooner())
    assert (estimator.state.step, estimator.state.stop_reason) == (10, "Sooner")


def test_a_metric_of_the_handlers_own(batches: Any) -> None:
    """Gluon's handler updates it, and another one stops when it no longer improves."""
    accuracy = mx.metric.Accuracy()
    stopping = theirs.EarlyStoppingHandler(accuracy, mode="min", baseline=-1.0, patience=2)
    handlers = [theirs.MetricHandler([accuracy]), stopping]
    estimator = MultiEstimator(mx.gluon.nn.Dense(3), CE, context=TWO)
    history = estimator.fit([batch[:2] for batch in batches], epochs=9, event_handlers=handlers)
    assert (history.epochs, estimator.state.stop_reason) == (2, "EarlyStoppingHandler")
    assert accuracy.get()[1] == history["train_accuracy"][-1]
