"""``multifit check`` prints the plan, trains nothing and writes nothing."""

import os
from pathlib import Path

import pytest


def test_it_prints_the_plan_unless_it_is_to_be_quiet_and_writes_nothing(write, multifit):
    before = set(os.listdir())
    result = multifit("check", write())
    assert result.code == 0 and "kind" in result.out and "place" in result.out
    assert multifit("check", write(), "--quiet").out == ""
    assert set(os.listdir()) - before == {"small.py"}


def test_it_lists_layers_on_request(write, multifit):
    path = write()
    assert "layers" not in multifit("check", path).out
    out = multifit("check", path, "--layers").out
    assert [line.split() for line in out.split("\nlayers\n")[1].splitlines()[2:5]] == [
        ["kind", "Dense", "(10,", "2)", "float32", "8"],
        ["place", "Dense", "(10,", "1)", "float32", "4"],
        ["in", "all", "12"],
    ]


def test_it_is_the_plan_of_training(trained, multifit, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")  # the width of plan.txt
    result = multifit("check", trained, "--set", "rate=0.1")
    assert result.out == Path("runs/small/plan.txt").read_text()


def test_trainers_that_miss_a_parameter_are_an_error(write, multifit):
    result = multifit("check", write("", **{'TrainerSpec(".*",': 'TrainerSpec("kind.*",'}))
    assert result.code == 1 and "place.weight" in result.err


def test_a_functions_parameter_gets_the_setting_of_its_name(write, multifit):
    more = """
def trainers(net, rate=7, width=5, seed=3):
    raise LookupError(f"{rate} {width} {seed}")
"""
    with pytest.raises(LookupError, match="0.3 5 0"):
        multifit("check", write(more), "--set", "rate=0.3")
