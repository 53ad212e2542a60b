"""PlateauHandler; that it resumes is tested in gluon/handlers/test_resuming.py."""

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


def trainers(**rates: float) -> dict[str, TrainerHandle]:
    made = {}
    for name, rate in rates.items():
        parameter = mx.gluon.Parameter("w", shape=(1,))
        parameter.initialize()
        made[name] = TrainerHandle(name, mx.gluon.Trainer([parameter], "sgd", {"learning_rate": rate}))
    return made


def rates(run: Any, values: list[float], plateau: PlateauHandler) -> list[float]:
    """Run with these validation values, one batch per epoch; return the first trainer's rate after each."""
    begun, seen = run.state.step, list[float]()
    (first, *_) = run.trainers.values()
    run.validation = lambda state: dict.fromkeys(("loss", "acc"), values[state.step - begun - 1])
    read = At("epoch_end", lambda _: seen.append(first.learning_rate), priority=2000.0)
    run.fit(plateau, ValidationHandler("data"), read, epochs=len(values), batches=1)
    return seen


@pytest.mark.parametrize(
    ("arguments", "values", "expected"),
    [
        ({}, [3, 2, 2, 1], [1, 1, 0.5, 0.5]),
        ({}, [3, 3, 3], [1, 0.5, 0.25]),
        ({"patience": 2}, [3, 4, 2, 3, 3, 3], [1, 1, 1, 1, 0.5, 0.5]),
        ({"patience": 2}, [3, NAN, 4, NAN, NAN, 5, 0], [1, 1, 1, 1, 1, 0.5, 0.5]),
        ({"min_delta": 0.5}, [3, 2.6, 2.4], [1, 0.5, 0.5]),
        ({"cooldown": 2}, [3, 3, 3, 3, 3], [1, 0.5, 0.5, 0.5, 0.25]),
        ({"cooldown": 1}, [3, 3, 1, 2], [1, 0.5, 0.5, 0.25]),  # the best moves meanwhile
        ({"cooldown": 1}, [3, 3, NAN, 3, 3], [1, 0.5, 0.5, 0.5, 0.25]),
        ({"min_lr": 0.3}, [3, 3, 3, 3], [1, 0.5, 0.3, 0.3]),
        ({"min_lr": 2.0}, [3, 3], [1, 1]),  # lowered, never raised
        ({"mode": "max"}, [1, 2, 2], [1, 1, 0.5]),
        ({"monitor": "val_acc"}, [0.1, 0.2, 0.2], [1, 1, 0.5]),
    ],
)
def test_when_it_reduces_the_rate(run: Any, arguments: Any, values: list[float], expected: Any) -> None:
    """Also in a second fit, which starts from scratch."""
    plateau = PlateauHandler(**{"monitor": "val_loss", "factor": 0.5, "patience": 1, **arguments})
    for _ in range(2):
        run.trainers = trainers(body=1.0)
        assert rates(run, values, plateau) == expected


@pytest.mark.parametrize(
    ("names", "there", "shown"),
    [
        (None, ["body", "heads"], "body 0.5000 to 0.0500, heads 1.000e-05 to 1.000e-06"),
        (["heads", "body"], ["body", "heads"], "heads 1.000e-05 to 1.000e-06, body 0.5000 to 0.0500"),
        (["heads"], ["body", "heads"], "heads 1.000e-05 to 1.000e-06"),
        (None, ["heads"], "1.000e-05 to 1.000e-06"),
    ],
)
def test_the_rates_of_some_or_all_trainers_are_reduced(run: Any, log: Any, names, there, shown) -> None:
    before = {"body": 0.5, "heads": 1e-5}
    run.trainers = trainers(**{name: before[name] for name in there})
    rates(run, [3, 3], PlateauHandler("val_loss", patience=1, trainers=names))
    for name, handle in run.trainers.items():
        factor = 0.1 if name in (names or there) else 1.0
        assert handle.learning_rate == pytest.approx(before[name] * factor)
    assert log.messages == [f"val_loss has not improved on 3.0000 for 1 epoch: learning rate {shown}"]


def test_an_unknown_trainer_is_an_error(run: Any) -> None:
    run.trainers = trainers(body=1.0, heads=1.0)
    with pytest.raises(TrainerError) as caught:
        run.fit(PlateauHandler("val_loss", trainers=["bdy", "body", "heads"]))
    assert [problem.message for problem in caught.value.problems] == [
        'PlateauHandler: there is no trainer "bdy" (did you mean "body"?); valid are "body", "heads"'
    ]
