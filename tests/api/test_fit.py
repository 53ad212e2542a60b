"""fit(): limits, trainers, what is left after an error, loops of one's own, calls from other threads."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn, rnn

from multifit import DataError, Every, History, LossSpec, MultiEstimator, RunState, TrainerError, TrainerSpec
from multifit.checkpoints import newest_checkpoint
from multifit.handlers import CheckpointHandler, GradientNoise, LabelSmoothing, MixUp, WeightAveraging
from tests.common.compare import assert_same_parameters, assert_unchanged, copy_parameters, snapshot, twins
from tests.common.handlers import handler
from tests.common.nets import two_heads
from tests.common.specs import CE, L2, two_head_spec


def new(trainers: Any = None, **changes: Any) -> MultiEstimator:
    return MultiEstimator(two_heads(), two_head_spec(**changes), trainers)


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


@pytest.mark.parametrize(
    ("limits", "changes", "steps", "epochs"),
    [
        ({"batches": 1}, {}, 1, 1), ({"batches": 7}, {}, 7, 3),
        # handlers may change the limits
        ({"epochs": 2}, {"max_epoch": 1}, 3, 1), ({"epochs": 2}, {"max_epoch": 4}, 12, 4),
        ({"batches": 5}, {"max_batch": 2}, 2, 1),
    ],
    ids=str,
)  # fmt: skip
def test_limits(estimator, batches, limits, changes, steps, epochs):
    def change(estimator: Any) -> None:
        for name, value in changes.items():
            setattr(estimator, name, value)

    history = estimator.fit(batches, **limits, event_handlers=handler(epoch_begin=change))
    assert (estimator.state.step, history.epochs) == (steps, epochs)
    assert np.isfinite(history["train_loss"]).all()
    if "batches" in limits and not changes:
        assert estimator.state.stop_reason == f"{steps} batch{'es' * (steps > 1)}"


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


def test_another_net_or_spec_needs_another_estimator(estimator: MultiEstimator) -> None:
    assert repr(estimator).startswith("MultiEstimator(PlainHeads, ")
    for name in ("net", "spec"):
        with pytest.raises(AttributeError):
            setattr(estimator, name, getattr(estimator, name))


# ---- errors ------------------------------------------------------------------------------------------------


def test_an_error_of_an_operator_in_the_background_is_the_nets() -> None:
    net = nn.HybridSequential()
    net.add(rnn.LSTM(5, layout="NTC", projection_size=3), nn.Dense(2))
    batch = np.ones((4, 7, 3), "float32"), np.ones((4, 2), "float32")
    message = r"(?s)No tra.*forward pass \(train\), called with data \(4, 7, 3\)"
    with pytest.raises(mx.MXNetError, match=message):
        MultiEstimator(net, L2).fit([batch], epochs=1)


ERRORS = {"loader": ConnectionResetError, "net": mx.MXNetError, "handler": OSError}


@pytest.mark.parametrize("cause", ERRORS)
def test_an_error_in_a_later_batch_ends_the_fit_properly(cause: str, batches: Any, tmp_path: Path) -> None:
    """``train_end`` is called, and the newest checkpoint is whole: a resumed run goes on from it."""

    def data() -> Iterator[Any]:
        for number, batch in enumerate(batches * 3, 1):
            if number == 5 and cause == "loader":
                raise ConnectionResetError("a worker died")
            yield (batch[0][:, :5], *batch[1:]) if number == 5 and cause == "net" else batch

    def fail(estimator: Any) -> None:
        if cause == "handler" and estimator.state.step == 5:
            raise OSError("disk full")

    ended: list[int] = []
    fails = handler(batch_end=fail, train_end=lambda estimator: ended.append(estimator.state.step))
    with pytest.raises(ERRORS[cause]):
        saving = CheckpointHandler(tmp_path, every=Every(2, "batch"))
        new().fit(data(), batches=9, event_handlers=[saving, fails])
    assert ended == [5 if cause == "handler" else 4]
    newest, damaged = newest_checkpoint(tmp_path)
    assert newest is not None and newest.step == 4 and not damaged
    resumed = new()
    resumed.fit(batches * 3, batches=9, event_handlers=CheckpointHandler(tmp_path), resume=tmp_path)
    assert resumed.state.step == 9


# ---- trainers ----------------------------------------------------------------------------------------------


def test_a_trainer_of_the_user(batches: Any) -> None:
    net = two_heads()
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    estimator = MultiEstimator(net, two_head_spec(), trainer)
    assert estimator.trainers["trainer"].trainer is trainer
    history = estimator.fit(batches, epochs=1)
    trainer.set_learning_rate(0.25)
    estimator.fit(batches, epochs=1)
    assert (history["lr"], estimator.history["lr"]) == ([0.5], [0.25])


def test_trainers_by_name(batches: Any) -> None:
    estimator = new(
        {
            "body/all": TrainerSpec("body.*", "adam", {"learning_rate": 0.01}),
            "heads": TrainerSpec("(digit|size).*", "sgd", {"learning_rate": 0.1, "momentum": 0.9}),
        }
    )
    rates = {"lr_body/all": 0.01, "lr_heads": 0.1}
    assert estimator.learning_rates() == rates  # before any shape is known
    history = estimator.fit(batches, epochs=1)
    assert {name: history[name] for name in rates} == {name: [rate] for name, rate in rates.items()}
    assert dict(estimator.trainers)["heads"].learning_rate == 0.1 and len(estimator.trainers) == 2
    with pytest.raises(KeyError, match='no trainer "head" .did you mean "heads"'):
        estimator.trainers["head"]
    one = new(TrainerSpec(".*", "sgd", {"learning_rate": 0.5}))
    assert repr(one.trainers) == "Trainers(trainer)" and one.learning_rates() == {"lr": 0.5}
    wrong = new(TrainerSpec("bodi.*"))
    assert wrong.learning_rates() == {}  # handlers read it before the check
    with pytest.raises(TrainerError, match="bodi"):
        wrong.trainers  # noqa: B018


# ---- a loop of one's own -----------------------------------------------------------------------------------


class Counting(MultiEstimator):
    trained = evaluated = 0

    def fit_batch(self, batch: Any) -> Any:
        self.trained += 1
        return super().fit_batch(tuple(reversed(batch)))

    def evaluate_batch(self, batch: Any) -> Any:
        self.evaluated += 1
        return super().evaluate_batch(batch)


def test_fit_batch_and_evaluate_batch_may_be_overridden(batches: Any) -> None:
    estimator = Counting(two_heads(), two_head_spec())
    estimator.fit([tuple(reversed(batch)) for batch in batches], batches, epochs=2)
    assert (estimator.trained, estimator.evaluated) == (6, 6)


SGD = {"learning_rate": 0.1}


def test_a_loop_of_ones_own_is_a_fit(batches: Any) -> None:
    """Also with a trainer that updates every other batch, and with a weight that changes."""
    spec = two_head_spec(
        losses={"digit": LossSpec(CE, weight=lambda state: 1 / (1 + state.step)), "size": L2}
    )
    by_fit, by_hand = twins(two_heads, *[batch[:1] for batch in batches[0][:1]])
    estimators = [
        MultiEstimator(net, spec, TrainerSpec(".*", "sgd", SGD, every=2)) for net in (by_fit, by_hand)
    ]
    figures = estimators[0].fit(batches, epochs=2)
    estimators[1].check(batches)  # it restarts what runs the batches
    for batch in batches * 2:
        result = estimators[1].fit_batch(batch)
    assert result.batch.samples == 4
    assert_same_parameters(by_hand, by_fit)
    assert estimators[1].figures()["train_loss"] == pytest.approx(np.mean(figures["train_loss"]))
    states = [estimator.state for estimator in estimators]
    assert states[0].step == states[1].step == 6 and states[0].samples == states[1].samples
    estimators[1].fit({"both": [dict(zip(("image", "digit", "size"), batch)) for batch in batches]}, epochs=1)
    assert states[1].step == 9
    assert estimators[1].fit_batch(batches[0]).batch.samples == 8


def test_a_loop_of_ones_own_accumulates_nothing(batches: Any) -> None:
    estimator = new(TrainerSpec(".*", every=2, accumulate=True))
    estimator.evaluate(batches)
    before = snapshot(estimator.net)
    with pytest.raises(TrainerError, match=r'trainers\["trainer"\]: accumulate=True adds up gradients with'):
        estimator.fit_batch(batches[0])
    assert_unchanged(estimator.net, before)


HANDLERS = {
    "noise": GradientNoise(1.0), "smoothing": LabelSmoothing(0.5), "mixup": MixUp(),
    "averages": WeightAveraging("ema", 0.5), "hold": handler(hold_update=lambda estimator: True),
}  # fmt: skip


@pytest.mark.parametrize("name", HANDLERS)
def test_what_handlers_change_ends_with_their_fit(name: str, batches: Any) -> None:
    after_fit, by_itself = twins(two_heads, *[batch[:1] for batch in batches[0][:1]])
    fitted, plain = (
        MultiEstimator(net, two_head_spec(), TrainerSpec(".*", "sgd", SGD)) for net in (after_fit, by_itself)
    )
    fitted.fit(batches, epochs=1, event_handlers=[HANDLERS[name]])
    copy_parameters(by_itself, after_fit)
    assert fitted.evaluate(batches) == plain.evaluate(batches)
    for batch in batches:
        fitted.fit_batch(batch), plain.fit_batch(batch)
    assert_same_parameters(after_fit, by_itself)
    assert fitted.evaluate(batches) == plain.evaluate(batches)


# ---- one thing at a time -----------------------------------------------------------------------------------


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "fit": lambda estimator, batches: estimator.fit(batches, epochs=1),
    "evaluate": lambda estimator, batches: estimator.evaluate(batches, event_handlers=[]),
    "predict": lambda estimator, batches: estimator.predict(batches),
}


def in_another_thread(call: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(1) as threads:
        threads.submit(call).result(60)


@pytest.mark.parametrize("call", CALLS)
def test_during_a_fit_another_thread_is_refused(call: str, batches: Any) -> None:
    estimator, refused = new(), []

    def from_outside() -> None:
        with pytest.raises(RuntimeError, match=f"^{call} was called while fit runs in another thread"):
            CALLS[call](estimator, batches)
        refused.append(call)

    calls = SimpleNamespace(batch_end=lambda estimator: in_another_thread(from_outside))
    estimator.fit(batches, epochs=1, event_handlers=calls)
    assert len(refused) == estimator.state.step == len(batches)
    in_another_thread(lambda: CALLS[call](estimator, batches))  # it has ended


def test_predictions_of_several_threads_wait_for_each_other(estimator: MultiEstimator, batches: Any) -> None:
    running: list[int] = []

    class Loader(list):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            running.append(1)
            for batch in super().__iter__():
                time.sleep(0)  # another thread may go on
                yield batch
            assert running == [1]
            running.clear()

    expected = estimator.predict(batches)
    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(estimator.predict, Loader(batches)) for _ in range(12)]
    for call in calls:
        for name, array in call.result().items():
            np.testing.assert_array_equal(array, expected[name])
