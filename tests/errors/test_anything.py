"""Whatever is passed to the public constructors and methods: never a raw traceback from deep inside."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from multifit import LabelSpec, LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.errors import DataError, SpecError, TrainerError, UserCodeError

import mxnet as mx  # isort: skip
from mxnet import gluon

CE = gluon.loss.SoftmaxCrossEntropyLoss
ODD = [
    None,
    3,
    -1,
    2.5,
    float("nan"),
    float("inf"),
    True,
    "",
    "zzz",
    "digit",
    "[",
    b"x",
    [],
    ["digit"],
    [3],
    [None],
    [["digit"]],
    {},
    {"digit": 1},
    {3: CE()},
    {"digit"},
    (),
    ("digit", ..., "amount"),
    ...,
    object(),
    object,
    lambda *args: 0,
    CE,
    CE(),
    np.float32(2),
    np.array([1, 2]),
    mx.optimizer.Adam,
    TaskSpec("a"),
    LossSpec(),
]
OURS = (SpecError, DataError, TrainerError, UserCodeError)


def survives(setup: Any, action: Any) -> None:
    """Run it: either it works, or it is refused in words of ours and nothing moved."""
    before = setup.parameters()
    try:
        action()
    except OURS as error:
        after = setup.parameters()
        assert all(np.array_equal(before[name], after[name]) for name in before)
        assert all(len(line) < 700 for line in str(error).splitlines())
    except ValueError as error:
        assert type(error) is ValueError
        assert any(
            word in str(error) for word in ("epochs", "batches", "context", "event_handlers", "precision")
        )


def fields_of(kind: type) -> list[str]:
    return list(inspect.signature(kind).parameters)


@pytest.mark.parametrize("name", fields_of(TaskSpec))
def test_task_spec(setup: Any, name: str) -> None:
    for value in ODD:
        survives(
            setup,
            setup.but(**({name: value} if name != "name" else {"spec": {**setup.spec, name: value}})).fit,
        )


@pytest.mark.parametrize("name", fields_of(LossSpec))
def test_loss_spec(setup: Any, name: str) -> None:
    for value in ODD:
        survives(
            setup, setup.with_loss(**{"fn": CE(), "outputs": "digit", "labels": "digit", name: value}).fit
        )


@pytest.mark.parametrize("name", fields_of(MetricSpec))
def test_metric_spec(setup: Any, name: str) -> None:
    for value in ODD:
        fields = {"metric": mx.metric.Accuracy(), "outputs": "digit", "labels": "digit", name: value}
        survives(setup, setup.with_metric(**fields).fit)


@pytest.mark.parametrize("name", fields_of(LabelSpec))
def test_label_spec(setup: Any, name: str) -> None:
    for value in ODD:
        survives(setup, setup.but(labels=[LabelSpec(**{"name": "digit", name: value}), "amount"]).fit)


@pytest.mark.parametrize("name", fields_of(TrainerSpec))
def test_trainer_spec(setup: Any, name: str) -> None:
    for value in ODD:
        survives(setup, setup.with_trainers(TrainerSpec(**{"params": ".*", name: value})).fit)


@pytest.mark.parametrize("name", ["net", "spec", "trainers", "context", "initializer", "frozen", "precision"])
def test_estimator(setup: Any, name: str) -> None:
    for value in ODD:
        fields = {"net": setup.net, "spec": TaskSpec(**setup.spec), name: value}
        survives(setup, lambda fields=fields: MultiEstimator(**fields).fit(setup.data, epochs=1))


@pytest.mark.parametrize("name", ["train_data", "val_data", "epochs", "batches", "event_handlers"])
def test_fit(setup: Any, name: str) -> None:
    for value in ODD:
        fields = {"train_data": setup.data, "epochs": 1, name: value}
        if name == "batches":
            fields["epochs"] = None
        survives(setup, lambda fields=fields: setup.make().fit(**fields))


@pytest.mark.parametrize("way", ["evaluate", "predict", "check"])
def test_other_methods(setup: Any, way: str) -> None:
    for value in [*ODD, [ODD], tuple(ODD)]:
        survives(setup, lambda value=value: getattr(setup.make(), way)(value))


@pytest.mark.parametrize(
    "option", ["learning_rate", "wd", "clip_gradient", "rescale_grad", "lr_scheduler", "momentum"]
)
def test_options_of_an_optimizer(setup: Any, option: str) -> None:
    for value in ODD:
        survives(setup, setup.with_trainers(TrainerSpec(".*", "sgd", {option: value})).fit)


def test_all_default_and_missing_parameters() -> None:
    for kind, fields in (
        (LossSpec, {}),
        (LossSpec, dict.fromkeys(fields_of(LossSpec))),
        (MetricSpec, dict.fromkeys(fields_of(MetricSpec))),
        (LabelSpec, dict.fromkeys(fields_of(LabelSpec))),
        (TrainerSpec, dict.fromkeys(fields_of(TrainerSpec))),
    ):
        assert kind(**fields) == kind(**fields)  # none of these raises by itself
    for kind in (MetricSpec, LabelSpec, TrainerSpec, TaskSpec, MultiEstimator):
        with pytest.raises(TypeError, match="missing 1 required|missing 2 required"):
            kind()
    assert TaskSpec("a").output_names == ("a",)
    with pytest.raises(SpecError):
        TaskSpec(**dict.fromkeys(fields_of(TaskSpec)))
