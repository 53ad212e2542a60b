"""All problems at once: numbered, each with its kind, and the first kind gives the class."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import DataError, LossSpec, SpecError, TrainerError, TrainerSpec
from multifit.errors import Problem, raise_problems

import mxnet as mx  # isort: skip
from mxnet import gluon

ONLY_BODY = {"body": TrainerSpec("body.*")}


def problems_of(faulty: Any, way: str) -> tuple[type, list[tuple[str, str]], str]:
    before = faulty.parameters()
    with pytest.raises((SpecError, DataError, TrainerError)) as raised:
        getattr(faulty, way)()
    after = faulty.parameters()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    error = raised.value
    return type(error), [(problem.kind, problem.message) for problem in error.problems], str(error)


@pytest.mark.parametrize("way", ["check", "fit"])
def test_spec_data_and_trainers(setup: Any, way: str) -> None:
    x, digit, _ = setup.data[0]
    faulty = setup.but(
        data=[[x, digit + 1, np.zeros((8, 2), "float32")]],
        val_data=[[x, digit]],
    ).with_trainers(
        {"body": TrainerSpec("body.*", "adm"), "heads": TrainerSpec("(digit|amount).*", clip_norm=-1)}
    )
    kind, problems, message = problems_of(faulty, way)
    assert kind is SpecError
    assert sorted(kind for kind, _ in problems) == ["data", "spec", "spec", "trainer", "trainer"]
    lines = message.splitlines()
    assert lines[0] == "5 problems found:"
    assert lines[1:] == [f"  {i}. {text}" for i, (_, text) in enumerate(problems, 1)]
    for text in (
        "3, which would be taken",
        "(8, 2) float32 differ",
        "val_data: the batch has 2",
        "adm",
        "clip_norm",
    ):
        assert text in message
    setup.trains()


@pytest.mark.parametrize("way", ["check", "fit"])
def test_data_and_trainers(setup: Any, way: str) -> None:
    kind, problems, _ = problems_of(setup.but(data=[setup.data[0][:2]]).with_trainers(ONLY_BODY), way)
    assert kind is DataError
    assert [kind for kind, _ in problems] == ["data", "trainer"]
    setup.trains()


@pytest.mark.parametrize("way", ["check", "fit"])
def test_no_loss_wrong_data_and_wrong_trainers(setup: Any, way: str) -> None:
    metrics = setup.spec["metrics"]
    faulty = setup.but(losses=None, metrics=metrics, unused=["amount"], data=[setup.data[0][:2]])
    kind, problems, _ = problems_of(faulty.with_trainers(ONLY_BODY), way)
    assert kind is SpecError
    assert [kind for kind, _ in problems] == ["spec", "data", "trainer"]


def test_everything_about_the_trainers(setup: Any) -> None:
    _, problems, _ = problems_of(
        setup.with_trainers(
            {"a": TrainerSpec("body.*", "adm"), "b": 3, 4: TrainerSpec("zzz")}, frozen=["yyy"]
        ),
        "fit",
    )
    assert len(problems) == 5
    assert {kind for kind, _ in problems} == {"trainer"}


def test_a_wrong_initializer_with_wrong_data(setup: Any) -> None:
    faulty = setup.but(data=[setup.data[0][:2]]).with_trainers(None, initializer="xavir")
    kind, problems, _ = problems_of(faulty, "fit")
    assert kind is DataError
    assert [kind for kind, _ in problems] == ["trainer", "data"]


def test_everything_about_a_spec(setup: Any) -> None:
    faulty = setup.but(
        losses={
            "digit": LossSpec(3, weight=-1, scope="x", minimize="y", normalize_by="z"),
            "amount": LossSpec(gluon.loss.L2Loss, outputs="amont"),
        },
        metrics={"figure": LossSpec(), "accuracy": "acc"},
        unused=["nothing"],
    )
    kind, problems, message = problems_of(faulty, "fit")
    assert kind is SpecError
    for text in (
        "3 cannot",
        "weight is -1",
        "scope",
        "minimize",
        "normalize_by",
        "is a class",
        '"amont"',
        "'acc'",
    ):
        assert text in message
    assert len(problems) == len(set(problems))


def test_nothing_wrong() -> None:
    raise_problems([])


def test_a_problem_is_told_once() -> None:
    with pytest.raises(SpecError) as raised:
        raise_problems([Problem("spec", "a"), Problem("data", "b"), Problem("spec", "a")])
    assert str(raised.value) == "2 problems found:\n  1. a\n  2. b"
    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize("error", [SpecError, DataError, TrainerError])
def test_an_error_of_one_message(error: Any) -> None:
    raised = error("something is wrong")
    assert str(raised) == "1 problem found:\n  1. something is wrong"
    assert [(p.kind, str(p)) for p in raised.problems] == [(error.kind, "something is wrong")]


def test_the_refused_estimator_itself_trains_once_the_data_is_mended(setup: Any) -> None:
    estimator = setup.make()
    with pytest.raises(DataError):
        estimator.fit([setup.data[0][:2]], epochs=1)
    assert estimator.state.step == 0
    history = estimator.fit(setup.data, epochs=2)
    assert history.epochs == 2
    assert mx.nd.ones((1,)).asscalar() == 1
