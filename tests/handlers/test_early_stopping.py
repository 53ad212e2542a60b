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
        ({"patience": 1}, [3, 2, 2, 0], 3),
        ({"patience": 2}, [3, 4, 2, 3, 3, 0], 5),  # an improvement starts the count again
        ({"patience": 2}, [3, NAN, 4, NAN, NAN, 5, 0], 6),  # not measured: passed over
        ({"min_delta": 0.5}, [3, 2.6, 0], 2),
        ({"min_delta": 0.5}, [3, 2.4, 1.8, 1.2], 4),
        ({"patience": 2, "min_delta": 0.5}, [3, 2.6, 2.4, 2.3, 2.2, 0], 5),  # against the best, not the last
        ({"baseline": 2.5}, [3, 2, 1], 1),
        ({"baseline": 2.5, "patience": 2}, [3, 2, 1, 0], 4),
        ({"mode": "max"}, [1, 2, 3, 2, 9], 4),
        ({"mode": "max", "min_delta": 0.5}, [1, 1.6, 2.0, 9], 3),
    ],
)
def test_when_it_stops(run: Any, arguments: dict[str, Any], values: list[float], epochs: int) -> None:
    assert epochs_trained(run, values, EarlyStoppingHandler("val_loss", **arguments)) == epochs


def accuracy_minus_loss(figures: Any) -> float:
    return figures["val_acc"] - figures["val_loss"]


@pytest.mark.parametrize(
    ("monitor", "arguments", "epochs", "reason"),
    [
        (
            ["val_loss", "val_acc"],
            {},
            4,
            "val_loss has not improved on 2.0000, and val_acc has not improved on 2.0000 for 1 epoch",
        ),
        (["val_loss", "val_acc"], {"baseline": 2.5}, 1, "val_loss has not improved on 2.5000, and"),
        (
            accuracy_minus_loss,
            {"mode": "max"},
            4,
            "accuracy_minus_loss has not improved on 0.0000 for 1 epoch",
        ),
    ],
)
def test_several_figures(run: Any, monitor: Any, arguments: Any, epochs: int, reason: str) -> None:
    """One that improves is enough; one that was not measured is left out."""
    values = [(3, 1), (2, NAN), (2, 2), (2, 2), (1, 3)]
    run.validation = lambda state: dict(zip(["loss", "acc"], values[state.step - 1]))
    handler = EarlyStoppingHandler(monitor, **arguments)
    run.fit(handler, ValidationHandler("data"), epochs=5, batches=1)
    assert run.state.step == epochs
    assert run.state.stop_reason.startswith(reason)


def test_a_function_needs_a_mode(run: Any) -> None:
    with pytest.raises(
        ValueError, match='EarlyStoppingHandler: monitor is a function: say which is better, mode="min"'
    ):
        EarlyStoppingHandler(accuracy_minus_loss)
    run.validation = lambda state: {"loss": 1.0}
    handler = EarlyStoppingHandler(lambda figures: np.float32(1.5), mode="min")
    run.fit(handler, ValidationHandler("data"), epochs=1, batches=1)


def test_the_direction_defaults_to_the_estimators(run: Any) -> None:
    assert epochs_trained(run, [0.1, 0.2, 0.3, 0.2, 0.9], EarlyStoppingHandler("val_acc"), "acc") == 4


@pytest.mark.parametrize(
    ("patience", "reason"),
    [
        (0, "val_loss has not improved on 2.0000 for 1 epoch"),
        (2, "val_loss has not improved on 2.0000 for 2 epochs"),
    ],
)
def test_the_reason(run: Any, patience: int, reason: str) -> None:
    epochs_trained(run, [3, 2, 4, 5], EarlyStoppingHandler("val_loss", patience=patience))
    assert run.state.stop_reason == reason


def test_a_second_fit_starts_from_scratch(run: Any) -> None:
    handler = EarlyStoppingHandler("val_loss")
    assert epochs_trained(run, [1, 2], handler) == 2
    assert epochs_trained(run, [9, 8, 8, 7], handler) == 3


def test_an_unknown_direction_can_be_given(run: Any) -> None:
    """Without mode=, MultiEstimator raises before any update."""
    run.directions.clear()
    assert epochs_trained(run, [1, 2, 3], EarlyStoppingHandler("val_loss", mode="max", patience=1)) == 3


class Parameter:
    """What the handler uses of a Gluon parameter, on two devices."""

    def __init__(self) -> None:
        self._data: list[np.ndarray] | None = [np.zeros(2), np.zeros(2)]

    def list_data(self) -> list[np.ndarray]:
        if self._data is None:
            raise RuntimeError("not initialized")
        return self._data

    def set_data(self, value: np.ndarray) -> None:
        self._data = [value.copy() for _ in self.list_data()]


@pytest.fixture
def net(run: Any) -> dict[str, Parameter]:
    """Parameters that hold the number of batches trained."""
    run.parameters = {"weight": Parameter(), "never.reached": Parameter()}
    run.parameters["never.reached"]._data = None

    def move(estimator: Any) -> None:
        for array in run.parameters["weight"].list_data():
            array += 1  # in place, as trainers do

    run.fit_alone = run.fit
    run.fit = lambda *handlers, **more: run.fit_alone(*handlers, At("batch_end", move, None, -1999.0), **more)
    parameters: dict[str, Parameter] = run.parameters
    return parameters


@pytest.mark.parametrize(
    ("arguments", "values", "kept"),
    [
        ({"patience": 2}, [3, 1, 2, 2, 0], 2),  # it stopped
        ({"patience": 9}, [3, 1, 2, 2], 2),  # the fit was over before
        ({"patience": 9}, [3, 2, 1], 3),
        ({"patience": 9, "baseline": 0.5}, [3, 1, 2, 2], 4),  # none was better: as it is
    ],
)
def test_the_best_parameters_are_restored(
    run: Any, net: Any, caplog: Any, arguments: dict[str, Any], values: list[float], kept: int
) -> None:
    with caplog.at_level(logging.INFO, logger="multifit"):
        epochs_trained(run, values, EarlyStoppingHandler("val_loss", restore_best=True, **arguments))
    assert [array.tolist() for array in net["weight"].list_data()] == [[kept, kept]] * 2
    messages = [record.getMessage() for record in caplog.records]
    best = f"epoch {kept}, val_loss {values[kept - 1]:.4f}"
    assert messages == (
        [] if "baseline" in arguments else [f"restored the parameters of the best epoch: {best}"]
    )


def test_parameters_are_restored_on_request_only(run: Any, net: Any) -> None:
    handler = EarlyStoppingHandler("val_loss", patience=9)
    epochs_trained(run, [3, 1, 2, 2], handler)
    assert net["weight"].list_data()[0].tolist() == [4, 4]
    assert handler.state_dict()["kept"] == {}


def test_a_second_fit_does_not_restore_parameters_of_the_first(run: Any, net: Any) -> None:
    handler = EarlyStoppingHandler("val_loss", patience=9, restore_best=True)
    epochs_trained(run, [1, 2], handler)
    epochs_trained(run, [NAN, NAN], handler)
    assert net["weight"].list_data()[0].tolist() == [3, 3]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_it_continues_from_a_checkpoint(run: Any, net: Any, cut: int) -> None:
    """Stopped after any epoch and resumed, it ends as if it had not been."""
    values, states = [3, 1, 2, 1.5, 0.5, 9], list[dict[str, Any]]()
    first, second = (EarlyStoppingHandler("val_loss", patience=3, restore_best=True) for _ in range(2))
    keep = At("epoch_end", lambda estimator: states.append(first.state_dict()), priority=1500.0)
    load = At("train_begin", lambda estimator: second.load_state_dict(states[-1]), priority=1500.0)
    run.validation = lambda state: {"loss": values[state.step - 1]}
    run.fit(first, ValidationHandler("data"), keep, epochs=cut, batches=1)
    net["weight"]._data = [np.full(2, float(cut)), np.full(2, float(cut))]
    run.state.step = run.state.epoch = cut
    run.fit(second, ValidationHandler("data"), load, epochs=5 - cut, batches=1)
    assert (run.state.step, net["weight"].list_data()[0].tolist()) == (5, [5, 5])
    assert second.state_dict()["best_epoch"] == 4


def test_the_restored_epoch_is_logged_with_its_own_values(run: Any, net: Any, caplog: Any) -> None:
    """Each figure was the best in another epoch."""
    values = [{"loss": 1.0, "acc": 0.5}, {"loss": 3.0, "acc": 0.9}, {"loss": 3.0, "acc": 0.1}]
    run.validation = lambda state: values[state.step - 1]
    handler = EarlyStoppingHandler(["val_loss", "val_acc"], patience=9, restore_best=True)
    with caplog.at_level(logging.INFO, logger="multifit"):
        run.fit(handler, ValidationHandler("data"), epochs=3, batches=1)
    assert net["weight"].list_data()[0].tolist() == [2, 2]
    (record,) = caplog.records
    assert record.getMessage() == (
        "restored the parameters of the best epoch: epoch 2, val_loss 3.0000, val_acc 0.9000"
    )
