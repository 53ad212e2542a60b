"""EarlyStoppingHandler."""

import logging
import math
from typing import Any

import numpy as np
import pytest

from multifit.handlers import EarlyStoppingHandler, ValidationHandler

from .conftest import At

NAN = math.nan


def epochs_trained(run: Any, values: list[float], handler: EarlyStoppingHandler, figure: str = "loss") -> int:
    """Run with these validation values, one batch per epoch, and return after how many epochs it stopped."""
    begun = run.state.step
    run.validation = lambda state: {figure: values[state.step - begun - 1]}
    run.fit(handler, ValidationHandler("data"), epochs=len(values), batches=1)
    return run.state.step - begun


@pytest.mark.parametrize(
    ("arguments", "values", "epochs"),
    [
        ({}, [3, 2, 1, 0], 4),
        ({}, [3, 2, 2, 0], 3),  # no worse is no better
        ({"patience": 2}, [3, 4, 2, 3, 3, 0], 5),  # an improvement starts the count again
        ({"patience": 2}, [3, NAN, 4, NAN, NAN, 5, 0], 6),  # not measured: passed over
        ({"min_delta": 0.5}, [3, 2.6, 0], 2),
        ({"min_delta": 0.5}, [3, 2.4, 1.8, 1.2], 4),
        ({"patience": 2, "min_delta": 0.5}, [3, 2.6, 2.4, 2.3, 2.2, 0], 5),  # against the best, not the last
        ({"baseline": 2.5}, [3, 2, 1], 1),
        ({"baseline": 2.5, "patience": 2}, [3, 2, 1, 0], 4),
        ({"mode": "max", "min_delta": 0.5}, [1, 1.6, 2.0, 9], 3),
    ],
)
def test_when_it_stops(run: Any, arguments: dict[str, Any], values: list[float], epochs: int) -> None:
    assert epochs_trained(run, values, EarlyStoppingHandler("val_loss", **arguments)) == epochs


def margin(figures: Any) -> float:
    return figures["val_acc"] - figures["val_loss"]


PART = "val_loss has not improved on"
FOUR = f"{PART} 2.0000, and val_acc has not improved on 2.0000 for 1 epoch"


@pytest.mark.parametrize(
    ("monitor", "arguments", "epochs", "reason"),
    [
        (["val_loss", "val_acc"], {}, 4, FOUR),
        (["val_loss", "val_acc"], {"baseline": 2.5}, 1, f"{PART} 2.5000, and"),
        (margin, {"mode": "max"}, 4, "margin has not improved on 0.0000 for 1 epoch"),
    ],
    ids=["two", "baseline", "function"],
)
def test_several_figures(run: Any, monitor: Any, arguments: Any, epochs: int, reason: str) -> None:
    """One that improves is enough; one that was not measured is left out."""
    values = [(3, 1), (2, NAN), (2, 2), (2, 2), (1, 3)]
    run.validation = lambda state: dict(zip(["loss", "acc"], values[state.step - 1]))
    handler = EarlyStoppingHandler(monitor, **arguments)
    run.fit(handler, ValidationHandler("data"), epochs=5, batches=1)
    assert run.state.step == epochs
    assert run.state.stop_reason.startswith(reason)


def test_a_function_needs_a_mode() -> None:
    message = 'EarlyStoppingHandler: monitor is a function: say which is better, mode="min"'
    with pytest.raises(ValueError, match=message):
        EarlyStoppingHandler(margin)


def test_the_direction_defaults_to_the_estimators(run: Any) -> None:
    assert epochs_trained(run, [0.1, 0.2, 0.3, 0.2, 0.9], EarlyStoppingHandler("val_acc"), "acc") == 4


def test_a_second_fit_starts_from_scratch(run: Any) -> None:
    handler = EarlyStoppingHandler("val_loss")
    assert epochs_trained(run, [1, 2], handler) == 2
    assert epochs_trained(run, [9, 8, 8, 7], handler) == 3
    assert run.state.stop_reason == "val_loss has not improved on 8.0000 for 1 epoch"


@pytest.fixture
def net(run: Any) -> dict[str, Any]:
    """A parameter that holds the number of batches trained."""
    run.weights["weight"] = np.zeros(2)

    def move(estimator: Any) -> None:
        run.weights["weight"] += 1  # in place, as trainers do

    fit = run.fit
    run.fit = lambda *handlers, **more: fit(*handlers, At("batch_end", move, None, -1999.0), **more)
    return run.weights  # type: ignore[no-any-return]


def weights(net: Any) -> list[float]:
    return net["weight"].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("arguments", "values", "kept"),
    [
        ({"patience": 2}, [3, 1, 2, 2, 0], 2),  # it stopped
        ({"patience": 9}, [3, 1, 2, 2], 2),  # the fit was over before
        ({"patience": 9, "baseline": 0.5}, [3, 1, 2, 2], 4),  # none was better: as it is
        ({"patience": 9, "restore_best": False}, [3, 1, 2, 2], 4),
    ],
)
def test_the_best_parameters_are_restored(
    run: Any, net: Any, caplog: Any, arguments: dict[str, Any], values: list[float], kept: int
) -> None:
    with caplog.at_level(logging.INFO, logger="multifit"):
        epochs_trained(run, values, EarlyStoppingHandler("val_loss", **{"restore_best": True, **arguments}))
    assert weights(net) == [kept, kept]
    best = f"epoch {kept}, val_loss {values[kept - 1]:.4f}"
    message = f"restored the parameters of the best epoch: {best}"
    assert caplog.messages == ([message] if kept == 2 else [])


def test_a_second_fit_does_not_restore_parameters_of_the_first(run: Any, net: Any) -> None:
    handler = EarlyStoppingHandler("val_loss", patience=9, restore_best=True)
    epochs_trained(run, [1, 2], handler)
    epochs_trained(run, [NAN, NAN], handler)
    assert weights(net) == [3, 3]


@pytest.mark.parametrize("cut", [1, 3])
def test_it_continues_from_a_checkpoint(run: Any, net: Any, cut: int) -> None:
    """Stopped after any epoch and resumed, it ends as if it had not been."""
    values, states = [3, 1, 2, 1.5, 0.5, 9], list[dict[str, Any]]()
    first, second = (EarlyStoppingHandler("val_loss", patience=3, restore_best=True) for _ in range(2))
    keep = At("epoch_end", lambda estimator: states.append(first.state_dict()), priority=1500.0)
    load = At("train_begin", lambda estimator: second.load_state_dict(states[-1]), priority=1500.0)
    run.validation = lambda state: {"loss": values[state.step - 1]}
    run.fit(first, ValidationHandler("data"), keep, epochs=cut, batches=1)
    net["weight"][:] = cut
    run.state.step = run.state.epoch = cut
    run.fit(second, ValidationHandler("data"), load, epochs=5 - cut, batches=1)
    assert (run.state.step, weights(net)) == (5, [5, 5])


def test_the_restored_epoch_is_logged_with_its_own_values(run: Any, net: Any, caplog: Any) -> None:
    """Each figure was the best in another epoch."""
    values = [{"loss": 1.0, "acc": 0.5}, {"loss": 3.0, "acc": 0.9}, {"loss": 3.0, "acc": 0.1}]
    run.validation = lambda state: values[state.step - 1]
    handler = EarlyStoppingHandler(["val_loss", "val_acc"], patience=9, restore_best=True)
    with caplog.at_level(logging.INFO, logger="multifit"):
        run.fit(handler, ValidationHandler("data"), epochs=3, batches=1)
    assert weights(net) == [2, 2]
    best = "epoch 2, val_loss 3.0000, val_acc 0.9000"
    assert caplog.messages == [f"restored the parameters of the best epoch: {best}"]
