"""EarlyStoppingHandler; that it resumes is tested in gluon/handlers/test_resuming.py."""

import math
from typing import Any

import numpy as np
import pytest

from multifit.handlers import EarlyStoppingHandler, ValidationHandler

from .conftest import At

NAN = math.nan


def fit(run: Any, values: list[Any], handler: EarlyStoppingHandler) -> int:
    """Run with these values of val_loss and val_acc, a batch per epoch; return after how many it stopped."""
    begun, rows = run.state.step, [each if isinstance(each, tuple) else (each, each) for each in values]
    run.validation = lambda state: dict(zip(("loss", "acc"), rows[state.step - begun - 1]))
    run.fit(handler, ValidationHandler("data"), epochs=len(values), batches=1)
    return run.state.step - begun


def margin(figures: Any) -> float:
    return figures["val_acc"] - figures["val_loss"]


LOSS, BOTH, MANY = "val_loss", ["val_loss", "val_acc"], [(3, 1), (2, NAN), (2, 2), (2, 2), (1, 3)]


@pytest.mark.parametrize(
    ("monitor", "arguments", "values", "epochs"),
    [
        (LOSS, {}, [3, 2, 1, 0], 4),
        (LOSS, {}, [3, 2, 2, 0], 3),  # no worse is no better
        (LOSS, {"patience": 2}, [3, 4, 2, 3, 3, 0], 5),  # an improvement starts the count again
        (LOSS, {"patience": 2}, [3, NAN, 4, NAN, NAN, 5, 0], 6),  # not measured: passed over
        (LOSS, {"min_delta": 0.5}, [3, 2.6, 0], 2),
        (LOSS, {"min_delta": 0.5}, [3, 2.4, 1.8, 1.2], 4),
        (LOSS, {"patience": 2, "min_delta": 0.5}, [3, 2.6, 2.4, 2.3, 2.2, 0], 5),  # the best, not the last
        (LOSS, {"baseline": 2.5}, [3, 2, 1], 1),
        (LOSS, {"baseline": 2.5, "patience": 2}, [3, 2, 1, 0], 4),
        (LOSS, {"mode": "max", "min_delta": 0.5}, [1, 1.6, 2.0, 9], 3),
        ("val_acc", {}, [0.1, 0.2, 0.3, 0.2, 0.9], 4),  # the estimator knows the direction
        (BOTH, {}, MANY, 4),  # one that improves is enough; one that was not measured is left out
        (BOTH, {"baseline": 2.5}, MANY, 1),
        (margin, {"mode": "max"}, MANY, 4),
    ],
)
def test_when_it_stops(run: Any, monitor: Any, arguments: Any, values: list[Any], epochs: int) -> None:
    assert fit(run, values, EarlyStoppingHandler(monitor, **arguments)) == epochs


@pytest.mark.parametrize(
    ("monitor", "reason"),
    [
        (BOTH, "val_loss has not improved on 2.0000, and val_acc has not improved on 2.0000 for 1 epoch"),
        (margin, "margin has not improved on 0.0000 for 1 epoch"),
    ],
)
def test_the_reason_to_stop(run: Any, monitor: Any, reason: str) -> None:
    fit(run, MANY, EarlyStoppingHandler(monitor, mode="max" if monitor is margin else None))
    assert run.state.stop_reason == reason


def test_a_function_needs_a_mode() -> None:
    message = 'EarlyStoppingHandler: monitor is a function: say which is better, mode="min"'
    with pytest.raises(ValueError, match=message):
        EarlyStoppingHandler(margin)


@pytest.fixture
def weight(run: Any) -> np.ndarray:
    """A parameter that holds the number of batches trained."""
    run.weights["weight"] = np.zeros(2)

    def move(estimator: Any) -> None:
        run.weights["weight"] += 1  # in place, as trainers do

    plain = run.fit
    run.fit = lambda *handlers, **more: plain(*handlers, At("batch_end", move, None, -1999.0), **more)
    return run.weights["weight"]


ONE_EACH = [(1.0, 0.5), (3.0, 0.9), (3.0, 0.1)]  # each figure is the best in another epoch


@pytest.mark.parametrize(
    ("monitor", "arguments", "values", "kept", "best"),
    [
        (LOSS, {"patience": 2}, [3, 1, 2, 2, 0], 2, "epoch 2, val_loss 1.0000"),
        (LOSS, {}, [3, 1, 2, 2], 2, "epoch 2, val_loss 1.0000"),  # the fit was over before
        (LOSS, {"baseline": 0.5}, [3, 1, 2, 2], 4, None),  # none was better
        (LOSS, {"restore_best": False}, [3, 1, 2, 2], 4, None),
        (BOTH, {}, ONE_EACH, 2, "epoch 2, val_loss 3.0000, val_acc 0.9000"),
    ],
)
def test_the_best_parameters_are_restored(run, weight, log, monitor, arguments, values, kept, best) -> None:
    fit(run, values, EarlyStoppingHandler(monitor, **{"restore_best": True, "patience": 9, **arguments}))
    assert weight.tolist() == [kept, kept]
    assert log.messages == ([f"restored the parameters of the best epoch: {best}"] if best else [])


def test_a_second_fit_starts_from_scratch(run: Any, weight: Any) -> None:
    handler = EarlyStoppingHandler(LOSS, restore_best=True)
    assert fit(run, [1, 2], handler) == 2 and weight.tolist() == [1, 1]
    assert fit(run, [9, 8, 8, 7], handler) == 3
    assert run.state.stop_reason == "val_loss has not improved on 8.0000 for 1 epoch"
    assert weight.tolist() == [3, 3]
    fit(run, [NAN, NAN], handler)  # nothing of an earlier fit is restored
    assert weight.tolist() == [5, 5]
