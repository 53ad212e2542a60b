"""Whatever is passed to the public constructors and methods: never a raw traceback from deep inside."""

from __future__ import annotations

import inspect
from typing import Any, Callable

import numpy as np
import pytest

from multifit import LabelSpec, LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.errors import DataError, SpecError, TrainerError, UserCodeError

import mxnet as mx  # isort: skip

from .setups import BOTH, CE, Setup, new_setup

ODD = [
    None, 3, -1, 2.5, float("nan"), float("inf"), True, "", "zzz", "digit", "[", b"x", [], ["digit"], [3],
    [None], [["digit"]], {}, {"digit": 1}, {3: CE()}, {"digit"}, (), ("digit", ..., "amount"), ..., object(),
    object, lambda *args: 0, CE, CE(), np.float32(2), np.array([1, 2]), mx.optimizer.Adam, TaskSpec("a"),
    LossSpec(),
]  # fmt: skip
ARGUMENTS = ("epochs", "batches", "context", "event_handlers", "precision")  # a plain ValueError names one
OPTIONS = ("learning_rate", "wd", "clip_gradient", "rescale_grad", "lr_scheduler", "momentum")


def task(setup: Setup, field: str, value: Any) -> None:
    setup.but(spec={**setup.spec, field: value}).fit()


def loss(setup: Setup, field: str, value: Any) -> None:
    setup.with_loss(**{"fn": CE(), **BOTH, field: value}).fit()


def metric(setup: Setup, field: str, value: Any) -> None:
    setup.with_metric(**{"metric": mx.metric.Accuracy(), **BOTH, field: value}).fit()


def label(setup: Setup, field: str, value: Any) -> None:
    setup.but(labels=[LabelSpec(**{"name": "digit", field: value}), "amount"]).fit()


def trainer(setup: Setup, field: str, value: Any) -> None:
    setup.with_trainers(TrainerSpec(**{"params": ".*", field: value})).fit()


def option(setup: Setup, field: str, value: Any) -> None:
    setup.with_trainers(TrainerSpec(".*", "sgd", {field: value})).fit()


def estimator(setup: Setup, field: str, value: Any) -> None:
    fields = {"net": setup.net, "spec": TaskSpec(**setup.spec), field: value}
    MultiEstimator(**fields).fit(setup.data, epochs=1)


def fit(setup: Setup, field: str, value: Any) -> None:
    length = {} if field == "batches" else {"epochs": 1}
    setup.make().fit(**{"train_data": setup.data, **length, field: value})


def method(setup: Setup, name: str, value: Any) -> None:
    getattr(setup.make(), name)(value)


def fields(kind: type) -> list[str]:
    return list(inspect.signature(kind).parameters)


PLACES: list[tuple[Callable[..., None], list[str] | tuple[str, ...]]] = [
    (task, fields(TaskSpec)),
    (loss, fields(LossSpec)),
    (metric, fields(MetricSpec)),
    (label, fields(LabelSpec)),
    (trainer, fields(TrainerSpec)),
    (option, OPTIONS),
    (estimator, fields(MultiEstimator)),
    (fit, ["train_data", "val_data", "epochs", "batches", "event_handlers"]),
    (method, ["evaluate", "predict", "check"]),
]


@pytest.mark.parametrize(
    ("use", "field"),
    [pytest.param(use, field, id=f"{use.__name__}-{field}") for use, each in PLACES for field in each],
)
def test_an_odd_value_works_or_is_refused_in_our_words(use: Any, field: str) -> None:
    setup = new_setup()
    for value in [*ODD, [ODD], tuple(ODD)] if use is method else ODD:
        before = setup.parameters()
        try:
            use(setup, field, value)
        except (SpecError, DataError, TrainerError, UserCodeError) as error:
            assert not setup.moved(before)
            assert all(len(line) < 700 for line in str(error).splitlines())
        except ValueError as error:
            assert type(error) is ValueError
            assert any(name in str(error) for name in ARGUMENTS)


@pytest.mark.parametrize("kind", [LossSpec, MetricSpec, LabelSpec, TrainerSpec])
def test_the_items_of_a_spec_never_raise(kind: type) -> None:
    nothing = dict.fromkeys(fields(kind))
    assert kind(**nothing) == kind(**nothing)


@pytest.mark.parametrize("kind", [MetricSpec, LabelSpec, TrainerSpec, TaskSpec, MultiEstimator])
def test_required_arguments(kind: type) -> None:
    with pytest.raises(TypeError, match="missing [12] required"):
        kind()


def test_a_spec_of_none_is_an_error() -> None:
    with pytest.raises(SpecError):
        TaskSpec(**dict.fromkeys(fields(TaskSpec)))
