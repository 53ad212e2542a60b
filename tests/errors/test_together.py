"""All problems at once: numbered, each with its kind, and the first kind gives the class."""

import pickle
from typing import Any

import numpy as np
import pytest

from multifit import DataError, LossSpec, SpecError, TrainerError, TrainerSpec
from multifit.utils.errors import Problem, raise_problems

from .setups import L2, Setup, fault

SHORT = "the batch has 2"  # arrays
BODY = {"body": TrainerSpec("body.*")}
TWO_WRONG = {"body": TrainerSpec("body.*", "adm"), "heads": TrainerSpec("(digit|amount).*", clip_norm=-1)}
THREE_WRONG = {"a": TrainerSpec("body.*", "adm"), "b": 3, 4: TrainerSpec("zzz")}


def wrong_values(setup: Setup) -> Setup:
    x, digit, _ = setup.data[0]
    return setup.but(data=[[x, digit + 1, np.zeros((8, 2), "float32")]], val_data=[[x, digit]])


def short(setup: Setup) -> Setup:
    return setup.but(data=[setup.data[0][:2]])


def without_loss(setup: Setup) -> Setup:
    return setup.but(losses=None, metrics=setup.spec["metrics"], unused=["amount"])


# fmt: off
FAULTS = [
    fault("spec, data and trainers", lambda s: wrong_values(s).with_trainers(TWO_WRONG), SpecError,
        ["spec", "spec", "data", "trainer", "trainer"],
        ["3, which would be taken", "(8, 2) float32 differ", f"val_data: {SHORT}", "adm", "clip_norm"]),
    fault("data and trainers", lambda s: short(s).with_trainers(BODY), DataError,
        ["data", "trainer"], [SHORT]),
    fault("no loss, data and trainers", lambda s: short(without_loss(s)).with_trainers(BODY), SpecError,
        ["spec", "data", "trainer"], [SHORT]),
    fault("trainers", lambda s: s.with_trainers(THREE_WRONG, frozen=["yyy"]), TrainerError,
        ["trainer"] * 5, []),
    fault("data and an initializer", lambda s: short(s).with_trainers(None, initializer="xavir"), DataError,
        ["data", "trainer"], [SHORT]),
    fault("a spec", lambda s: s.but(
            losses={"digit": LossSpec(3, weight=-1, minimize="y", normalize_by="z"),
                    "amount": LossSpec(L2, outputs="amont")},
            metrics={"figure": LossSpec(), "accuracy": 5}, unused=["nothing"]),
        SpecError, None,
        ["3 cannot", "weight is -1", "minimize", "normalize_by", "is a class", '"amont"',
         "5 is not"]),
]
# fmt: on


@pytest.mark.parametrize("way", ["check", "fit"])
@pytest.mark.parametrize(("change", "expected"), FAULTS)
def test_all_problems_are_reported_together(setup: Setup, way: str, change: Any, expected: Any) -> None:
    error, kinds, texts = expected
    before = setup.parameters()
    with pytest.raises((SpecError, DataError, TrainerError)) as raised:
        getattr(change(setup), way)()
    problems, message = raised.value.problems, str(raised.value)
    assert type(raised.value) is error and not setup.moved(before)
    assert kinds is None or sorted(problem.kind for problem in problems) == sorted(kinds)
    assert len(problems) == len(set(problems))
    numbered = [f"  {i}. {problem.message}" for i, problem in enumerate(problems, 1)]
    assert message.splitlines() == [f"{len(problems)} problems found:", *numbered]
    assert all(text in message for text in texts)


@pytest.mark.parametrize("error", [SpecError, DataError, TrainerError])
def test_a_problem_is_reported_once_and_a_copied_error_is_the_same(error: Any) -> None:
    problems = [Problem(error.kind, "a"), Problem("trainer", "b"), Problem(error.kind, "a")]
    with pytest.raises(error) as caught:
        raise_problems(problems)
    raised: Any = caught.value
    assert str(raised) == "2 problems found:\n  1. a\n  2. b" and isinstance(raised, ValueError)
    raised.at("epoch 3, batch 8")
    same = pickle.loads(pickle.dumps(raised))
    assert (type(same), str(same), same.problems) == (error, str(raised), raised.problems)
