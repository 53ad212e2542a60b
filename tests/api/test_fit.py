"""fit(): epochs, batches, histories, counters, and what is left after an error."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import CheckpointHandler, DataError, Every, History, MultiEstimator, RunState
from multifit.checkpoints import newest_checkpoint
from tests.common.handlers import handler
from tests.common.nets import two_heads
from tests.common.specs import L2, two_head_spec

import mxnet as mx  # isort: skip
from mxnet.gluon import nn, rnn


def test_it_learns(estimator: MultiEstimator, batches: Any) -> None:
    history = estimator.fit(batches, batches, epochs=30)
    assert isinstance(history, History)
    assert history["train_loss"][-1] < 0.5 * history["train_loss"][0]
    assert history["val_accuracy"][-1] > 0.8
    names = ["loss", "digit", "size", "accuracy"]
    assert list(history) == [f"train_{n}" for n in names] + ["lr"] + [f"val_{n}" for n in names]
    assert all(len(values) == 30 and np.isfinite(values).all() for values in history.values())
    assert history["lr"] == [0.02] * 30
    assert history["val_loss"][-1] == pytest.approx(estimator.evaluate(batches)["loss"])


def test_a_second_fit_goes_on_with_its_own_history(estimator: MultiEstimator, batches: Any) -> None:
    first = estimator.fit(batches, epochs=2)
    second = estimator.fit(batches, epochs=3)
    assert (first.epochs, second.epochs) == (2, 3)
    assert estimator.history is second
    assert second["train_loss"][0] < first["train_loss"][-1]
    assert estimator.state == RunState(5, 2, 15, 100, "3 epochs")


@pytest.mark.parametrize(("number", "epochs"), [(1, 1), (7, 3)])
def test_batches(estimator: MultiEstimator, batches: Any, number: int, epochs: int) -> None:
    history = estimator.fit(batches, batches=number)
    assert (estimator.state.step, history.epochs) == (number, epochs)
    assert np.isfinite(history["train_loss"]).all()
    assert estimator.state.stop_reason == f"{number} batch{'es' * (number > 1)}"


@pytest.mark.parametrize(("limit", "value", "steps"), [("epoch", 1, 3), ("epoch", 4, 12), ("batch", 2, 2)])
def test_a_handler_may_change_the_limit(estimator, batches, limit, value, steps):
    change = handler(epoch_begin=lambda estimator: setattr(estimator, f"max_{limit}", value))
    given = {"epochs": 2} if limit == "epoch" else {"batches": 5}
    estimator.fit(batches, event_handlers=change, **given)
    assert estimator.state.step == steps


def test_a_generator_serves_as_many_batches_as_it_has(estimator: MultiEstimator, batches: Any) -> None:
    history = estimator.fit(iter(batches), batches, batches=10)
    assert np.isfinite(history["val_loss"]).all()
    assert history.epochs == 1
    assert estimator.state.step == 3
    assert estimator.state.stop_reason == "the data is exhausted"


def test_a_loader_that_can_only_be_read_once_is_an_error_in_the_second_epoch(estimator, batches):
    class Once:
        def __init__(self) -> None:
            self.rest = iter(batches)

        def __iter__(self) -> Any:
            yield from self.rest

    with pytest.raises(DataError, match="train_data yields no batch in epoch 2, though it did before"):
        estimator.fit(Once(), epochs=3)
    assert np.isfinite(estimator.history["train_loss"][0])  # what was trained is not lost


def test_an_error_of_the_net(batches: Any, log: Any) -> None:
    net = two_heads()
    net.size.register_forward_hook(lambda *args: 1 / 0)
    estimator = MultiEstimator(net, two_head_spec())
    with pytest.raises(ZeroDivisionError, match="forward pass"):
        estimator.fit(batches, epochs=1)
    assert any(line.endswith("stopped: ZeroDivisionError") for line in log())  # on 3.10, notes follow
    net.size._forward_hooks.clear()
    assert estimator.fit(batches, epochs=1).epochs == 1


def test_an_error_of_an_operator_in_the_background_is_the_nets() -> None:
    net = nn.HybridSequential()
    net.add(rnn.LSTM(5, layout="NTC", projection_size=3), nn.Dense(2))
    batch = np.ones((4, 7, 3), "float32"), np.ones((4, 2), "float32")
    message = r"(?s)No tra.*forward pass \(train\), called with data \(4, 7, 3\)"
    with pytest.raises(mx.MXNetError, match=message):
        MultiEstimator(net, L2).fit([batch], epochs=1)


class FailsInBatch5:
    def batch_end(self, estimator: Any) -> None:
        if estimator.state.step == 5:
            raise OSError("disk full")


ERRORS = {"loader": ConnectionResetError, "net": mx.MXNetError, "handler": OSError}


@pytest.mark.parametrize("cause", ERRORS)
def test_an_error_in_a_later_batch_ends_the_fit_properly(cause: str, batches: Any, tmp_path: Path) -> None:
    """``train_end`` is called, and the newest checkpoint is whole: a resumed run goes on from it."""

    def data() -> Iterator[Any]:
        for number, batch in enumerate(batches * 3, 1):
            if number == 5 and cause == "loader":
                raise ConnectionResetError("a worker died")
            yield (batch[0][:, :5], *batch[1:]) if number == 5 and cause == "net" else batch

    ended: list[int] = []
    ends = handler(train_end=lambda estimator: ended.append(estimator.state.step))

    def estimator() -> MultiEstimator:
        return MultiEstimator(two_heads(), two_head_spec())

    saving = CheckpointHandler(tmp_path, every=Every(2, "batch"))
    handlers = [saving, ends, *([FailsInBatch5()] * (cause == "handler"))]
    with pytest.raises(ERRORS[cause]):
        estimator().fit(data(), batches=9, event_handlers=handlers)
    assert ended == [5 if cause == "handler" else 4]
    newest, damaged = newest_checkpoint(tmp_path)
    assert newest is not None and newest.step == 4 and not damaged
    resumed = estimator()
    resumed.fit(batches * 3, batches=9, event_handlers=CheckpointHandler(tmp_path), resume=tmp_path)
    assert resumed.state.step == 9


def test_repr(estimator: MultiEstimator) -> None:
    assert repr(estimator).startswith("MultiEstimator(PlainHeads, ")


@pytest.mark.parametrize("name", ["net", "spec"])
def test_another_net_or_spec_needs_another_estimator(estimator: MultiEstimator, name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(estimator, name, getattr(estimator, name))
