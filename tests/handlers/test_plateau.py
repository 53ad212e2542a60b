"""PlateauHandler."""

import logging
import math
from typing import Any

import pytest

from multifit import TrainerError
from multifit.gluon.optim.handle import TrainerHandle
from multifit.handlers.plateau import PlateauHandler
from multifit.handlers.validation import ValidationHandler

from .conftest import At

import mxnet as mx  # isort: skip

NAN = math.nan


def trainer(name: str, optimizer: str = "sgd", **options: Any) -> TrainerHandle:
    parameter = mx.gluon.Parameter("w", shape=(1,))
    parameter.initialize()
    return TrainerHandle(name, mx.gluon.Trainer([parameter], optimizer, options))


def rates(
    run: Any, values: list[float], handler: PlateauHandler, figure: str = "loss", state: Any = None
) -> list[float]:
    """Run with these validation values, one batch per epoch; return the first trainer's rate after each."""
    begun, rates_seen = run.state.step, list[float]()
    if not hasattr(run, "trainers"):
        run.trainers = {"body": trainer("body", learning_rate=1.0)}
    (first, *_) = run.trainers.values()
    run.validation = lambda state: {figure: values[state.step - begun - 1]}
    read = At("epoch_end", lambda _: rates_seen.append(first.learning_rate), priority=2000.0)
    load = At("train_begin", lambda _: state and handler.load_state_dict(state), priority=2000.0)
    run.fit(handler, ValidationHandler("data"), read, load, epochs=len(values), batches=1)
    return rates_seen


@pytest.mark.parametrize(
    ("arguments", "values", "expected"),
    [
        ({"patience": 1}, [3, 2, 2, 1], [1, 1, 0.5, 0.5]),
        ({"patience": 1}, [3, 3, 3], [1, 0.5, 0.25]),
        ({"patience": 2}, [3, 4, 2, 3, 3, 3], [1, 1, 1, 1, 0.5, 0.5]),
        ({"patience": 2}, [3, NAN, 4, NAN, NAN, 5, 0], [1, 1, 1, 1, 1, 0.5, 0.5]),
        ({"patience": 1, "min_delta": 0.5}, [3, 2.6, 2.4], [1, 0.5, 0.5]),
        ({"patience": 1, "cooldown": 2}, [3, 3, 3, 3, 3], [1, 0.5, 0.5, 0.5, 0.25]),
        ({"patience": 1, "cooldown": 1}, [3, 3, 1, 2], [1, 0.5, 0.5, 0.25]),  # the best moves meanwhile
        ({"patience": 1, "cooldown": 1}, [3, 3, NAN, 3, 3], [1, 0.5, 0.5, 0.5, 0.25]),
        ({"patience": 1, "min_lr": 0.3}, [3, 3, 3, 3], [1, 0.5, 0.3, 0.3]),
        ({"patience": 1, "min_lr": 2.0}, [3, 3], [1, 1]),  # lowered, never raised
        ({"patience": 1, "mode": "max"}, [1, 2, 2], [1, 1, 0.5]),
    ],
)
def test_when_it_reduces_the_rate(
    run: Any, arguments: dict[str, Any], values: list[float], expected: list[float]
) -> None:
    handler = PlateauHandler("val_loss", **{"factor": 0.5, **arguments})
    assert rates(run, values, handler) == expected


def test_the_direction_defaults_to_the_estimators(run: Any) -> None:
    assert rates(run, [0.1, 0.2, 0.2], PlateauHandler("val_acc", patience=1), "acc") == [1, 1, 0.1]


def test_a_second_fit_starts_from_scratch(run: Any) -> None:
    handler = PlateauHandler("val_loss", 0.5, patience=1)
    assert rates(run, [1, 2], handler) == [1, 0.5]
    assert rates(run, [9, 8, 8], handler) == [0.5, 0.5, 0.25]


@pytest.mark.parametrize("names", [None, ["heads", "body"], ["heads"], "alone"])
def test_the_rates_of_some_or_all_trainers_are_reduced(run: Any, caplog: Any, names: Any) -> None:
    run.trainers = {"body": trainer("body", learning_rate=0.5), "heads": trainer("heads", learning_rate=1e-5)}
    if names == "alone":
        del run.trainers["body"]
        names = None
    caplog.set_level(logging.INFO)
    rates(run, [3, 3], PlateauHandler("val_loss", patience=1, trainers=names))
    reduced = list(names or run.trainers)
    changes = {"body": "0.5000 to 0.0500", "heads": "1.000e-05 to 1.000e-06"}
    shown = (
        ", ".join(f"{name} {changes[name]}" for name in reduced)
        if len(run.trainers) > 1
        else changes["heads"]
    )
    for name, handle in run.trainers.items():
        before = {"body": 0.5, "heads": 1e-5}[name]
        assert handle.learning_rate == pytest.approx(before * (0.1 if name in reduced else 1.0))
    assert caplog.messages == [f"val_loss has not improved on 3.0000 for 1 epoch: learning rate {shown}"]


@pytest.mark.parametrize("split", [1, 3, 5])
def test_it_continues_from_its_state(run: Any, split: int) -> None:
    """However a run is split, with the state handed on it ends where the whole one does."""
    values, make = [3, 3, 3, 2, 3, 3, 3], lambda: PlateauHandler("val_loss", 0.5, patience=2, cooldown=1)
    whole = rates(run, values, make())
    first = make()
    run.trainers = {"body": trainer("body", learning_rate=1.0)}
    rates_seen = rates(run, values[:split], first)
    resumed = rates(run, values[split:], make(), state=first.state_dict())
    assert rates_seen + resumed == whole


def test_an_unknown_trainer_is_an_error(run: Any) -> None:
    run.trainers = {"body": trainer("body"), "heads": trainer("heads")}
    with pytest.raises(TrainerError) as caught:
        run.fit(PlateauHandler("val_loss", trainers=["bdy", "body", "heads"]))
    assert [problem.message for problem in caught.value.problems] == [
        'PlateauHandler: there is no trainer "bdy" (did you mean "body"?); valid are "body", "heads"',
    ]
