"""The user's code raises: its exception is raised as it is, with a note of where it happened."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multifit import MetricSpec, TrainerError, TrainerSpec
from multifit.sampling import Proportional
from multifit.utils.text import last_line, memory, nearest

import mxnet as mx  # isort: skip

from .setups import BOTH, CE, Setup, around, new_setup

OUTPUT, LABEL = "outputs.digit (8, 3) float32", "labels.digit (8,) float32"
SLOTS = "x (8, 6) float32, digit (8,) float32, amount (8, 1) float32"
FORWARD = "the net's forward pass (train), called with x (8, "


class Lost(KeyError):
    """What the user's code raises here."""


MINE = Lost("mine")


def fails(*args: Any) -> Any:
    MINE.__notes__ = []
    raise MINE


class Metric(mx.metric.EvalMetric):
    """Raises in one of its methods."""

    def __init__(self, where: str) -> None:
        self.where = ""
        super().__init__("mine")
        self.where = where

    def update(self, labels: Any, preds: Any) -> None:
        self._at("update")

    def get(self) -> Any:
        self._at("get")
        return "mine", 0.0

    def reset(self) -> None:
        self._at("reset")

    def _at(self, where: str) -> None:
        if where == self.where:
            fails()


@mx.optimizer.register
class Unbuilt(mx.optimizer.SGD):
    """Cannot be built."""

    __init__ = fails


# fmt: off
CASES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "loss": (lambda s: s.with_loss(lambda a, b: fails(), **BOTH),
        f'losses["digit"], called with {OUTPUT}, {LABEL}'),
    "weight": (lambda s: s.with_loss(CE(), weight=fails),
        'losses["digit"].weight, called with state RunState'),
    "normalizer": (lambda s: s.with_loss(CE(), normalize_by=fails),
        f'losses["digit"].normalize_by, called with {SLOTS}'),
    "forward": (lambda s: s.but(forward=fails), f"forward= (train), called with {SLOTS}"),
    "batch_fn": (lambda s: s.but(batch_fn=fails),
        "batch_fn, called with batch [(8, 6) float32, (8,) float32, "),
    "metric function": (lambda s: s.with_metric(lambda a, b: fails(), **BOTH),
        f'metrics["figure"].update, called with {OUTPUT}, {LABEL}'),
    "transform": (lambda s: s.with_metric(mx.metric.Accuracy(), **BOTH, transform=lambda a, b: fails()),
        f'metrics["figure"].update, called with {OUTPUT}, {LABEL}'),
    "update": (lambda s: s.with_metric(Metric("update"), **BOTH),
        f'metrics["figure"].update, called with {OUTPUT}'),
    "get": (lambda s: s.with_metric(Metric("get"), **BOTH), 'metrics["figure"].get'),
    "reset": (lambda s: s.with_metric(Metric("reset"), **BOTH, stage="train"), 'metrics["figure"].reset'),
    "optimizer": (lambda s: s.with_trainers(TrainerSpec(".*", "unbuilt")),
        "trainers: unbuilt, called with {}"),
}
# fmt: on


@pytest.mark.parametrize(("change", "text"), CASES.values(), ids=CASES)
def test_it_is_raised_as_it_is_with_a_note_of_where(setup: Setup, change: Any, text: str) -> None:
    change(setup).refused(Lost, f"raised in {text}")
    with pytest.raises(Lost) as raised:
        change(setup).check()
    assert raised.value is MINE and len(MINE.__notes__) == 1


def test_before_python_3_11_the_notes_are_logged(setup: Setup, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr("multifit.estimator.run.NOTES_ARE_SHOWN", False)
    estimator = setup.with_loss(lambda a, b: fails(), **BOTH).make()
    monkeypatch.setattr(estimator.logger, "propagate", True)
    with pytest.raises(Lost):
        estimator.fit(setup.data, epochs=1)
    lines = [record.getMessage() for record in caplog.records if "raised in" in record.getMessage()]
    assert lines == [f'Lost: raised in losses["digit"], called with {OUTPUT}, {LABEL} (epoch 1, batch 1)']


def test_what_mxnet_raises_names_the_net(setup: Setup) -> None:
    """An operator raises when somebody waits for its result, and a trial of a metric would be the first."""
    x, digit, amount = setup.data[0]
    faulty = setup.but(data=[[x[:, :4], digit, amount]])
    faulty.refused(mx.MXNetError, f"raised in {FORWARD}4) float32")
    late = around(
        lambda dense, x: dense(x) * mx.nd.linalg.potrf(-mx.nd.eye(2)).sum(),
        metrics={"figure": MetricSpec(mx.metric.Accuracy(), **BOTH)},
    )
    late.refused(mx.MXNetError, f"raised in {FORWARD}6) float32")


def test_what_fails_in_the_background_is_not_raised_in_the_next_fit(setup: Setup) -> None:
    """Softmax of whole numbers fails when the engine runs it, after the shapes were refused."""
    faulty = setup.with_loss(lambda output, label: CE()(label.astype("int32"), output), **BOTH).make()
    with pytest.raises(mx.MXNetError, match="Shape inconsistent"):
        faulty.fit(setup.data, epochs=1)
    setup.trains()


def test_an_error_in_a_later_batch_stops_there_and_the_estimator_can_go_on(setup: Setup) -> None:
    loss = lambda output, label: fails() if len(output) == 7 else mx.nd.square(output).sum(axis=1)  # noqa: E731
    transform = lambda a, b: fails() if len(a) == 7 else (b, a)  # noqa: E731
    shorter = [slot[:7] for slot in setup.data[0]]

    def loader() -> Any:
        yield setup.data[0]
        raise Lost("in the loader")

    estimator = setup.with_loss(loss, **BOTH).make()
    estimator.fit(setup.data, epochs=1)
    with pytest.raises(Lost, match=r'in losses\["digit"\].*\(epoch 2, batch 3\)$'):
        estimator.fit([*setup.data, *setup.data, shorter], epochs=1)
    assert estimator.state.step == 3
    with pytest.raises(Lost, match=r"in the loader'\nraised in the run \(epoch 2, batch 2\)$"):
        estimator.fit(loader(), epochs=1)
    estimator.fit(setup.data, epochs=1)
    evaluating = setup.with_metric(mx.metric.Accuracy(), **BOTH, transform=transform).make()
    with pytest.raises(Lost, match=r'in metrics\["figure"\].update, .*\(evaluating, batch 2\)$'):
        evaluating.evaluate([setup.data[0], shorter])


def three_classes(setup: Setup) -> Setup:
    return setup.with_metric(mx.metric.F1(average="micro"), outputs="digit", labels="digit")


def singular(setup: Setup) -> Setup:
    """The engine raises what an operator raises when somebody reads what was computed from it."""

    def loss(output: Any, label: Any) -> Any:
        return mx.nd.square(output).mean(axis=1) * mx.nd.linalg.potrf(mx.nd.eye(2) * (1 - label.mean())).sum()

    return setup.with_loss(loss, **BOTH)


@pytest.mark.parametrize(
    ("change", "where"),
    [(three_classes, 'metrics["figure"]'), (singular, "an operation in one of the batches so far")],
)
def test_errors_at_the_end_of_an_epoch_name_what_failed(change: Any, where: str) -> None:
    setup = new_setup()
    x, _, amount = setup.data[0]
    columns = [np.array(labels * 2, "float32") for labels in ([0, 1, 1, 0], [1, 0, 1, 0], [0, 1, 2, 1])]
    with pytest.raises((ValueError, mx.MXNetError)) as raised:
        change(setup.but(data=[[x, digit, amount] for digit in columns])).fit()
    assert raised.value.__notes__[0].startswith(f"raised in {where}")


@pytest.mark.parametrize("method", ["counts", "updates"])
def test_a_sampling_of_the_users_own(setup: Setup, method: str) -> None:
    sampling = type("Mine", (Proportional,), {method: fails})()
    with pytest.raises(Lost, match=rf"mine'\nraised in sampling: Mine.{method}"):
        setup.make().fit({"all": setup.data}, epochs=1, sampling=sampling)


@pytest.mark.parametrize("event", ["epoch_end", "evaluate_end"])
def test_a_handler_may_end_a_trial(setup: Setup, event: str) -> None:
    """As optuna's TrialPruned does: the study goes on only if it gets this class."""
    pruner = type("Pruner", (), {event: staticmethod(lambda estimator: fails())})()
    for _ in range(2):
        with pytest.raises(Lost) as raised:
            setup.make().fit(setup.data, setup.data, epochs=9, event_handlers=pruner)
        place = " (epoch 1, batch 1)" * (event == "epoch_end")
        assert raised.value.__notes__[0] == f"raised in Pruner.{event}{place}"


def test_other_problems_are_reported_first(setup: Setup) -> None:
    faulty = setup.but(forward=fails).with_trainers({"body": TrainerSpec("body.*")})
    faulty.refused(TrainerError, "no trainer updates")


# ---- words of messages -------------------------------------------------------------------------------------


def test_memory_and_the_nearest_name() -> None:
    """Case and two letters in another order count least."""
    assert [memory(size) for size in (0, 1500, 2e7, 3.25e9)] == ["0 bytes", "1.5 kB", "20 MB", "3.25 GB"]
    assert nearest("NaN", ["n", "nan"]) == "nan" and nearest("adma", ["adamax", "adam"]) == "adam"
    assert nearest("aab", ["aab", "aba"]) is None


class MXNetError(RuntimeError):
    """Named as MXNet's, whose messages these are."""


LINES = [
    (KeyError("wrong"), "'wrong'"), (MXNetError(""), "no message"), (MXNetError("one\ntwo\n"), "two"),
    (ValueError("Traceback:\n  somewhere\nValueError: wrong \n"), "wrong"),
    (MXNetError('Traceback:\n  File "x.cc", line 6\nMXNetError: Check failed: a'), "Check failed: a"),
    (MXNetError("MXNetError: value 0 should be 1\nnum_hidden: Number, in operator f"), "value 0 should be 1"),
    (MXNetError("Deferred. MXNetError: value 0\nnum_hidden: Number."), "Deferred. MXNetError: value 0"),
]  # fmt: skip


def test_the_line_of_an_error_that_says_what_is_wrong() -> None:
    assert [last_line(error) for error, _ in LINES] == [line for _, line in LINES]
