"""``multifit check`` prints the plan, trains nothing and writes nothing."""

from __future__ import annotations

import os


def test_it_prints_the_plan_and_writes_nothing(write, multifit):
    before = set(os.listdir())
    result = multifit("check", write())
    assert result.code == 0 and "kind" in result.out and "place" in result.out
    assert set(os.listdir()) - before == {"small.py"}


def test_it_is_the_plan_that_training_prints(write, multifit):
    plan = multifit("check", write()).out
    assert multifit("train", write()).out.startswith(plan)


def test_quiet_says_nothing(write, multifit):
    result = multifit("check", write(), "--quiet")
    assert (result.code, result.out) == (0, "")


def test_what_does_not_fit_is_told(write, multifit):
    result = multifit("check", write("", **{'outputs=["kind", "place"]': 'outputs=["kind", "plase"]'}))
    assert result.code == 1 and "plase" in result.err and "Traceback" not in result.err


def test_trainers_that_do_not_cover_the_parameters_are_told(write, multifit):
    result = multifit("check", write("", **{'TrainerSpec(".*",': 'TrainerSpec("kind.*",'}))
    assert result.code == 1 and "place.weight" in result.err
