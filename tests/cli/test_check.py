"""``multifit check`` prints the plan, and ``multifit profile`` where the time goes; both train nothing."""

import json
import os
from pathlib import Path

import pytest


def test_it_is_the_plan_of_training_and_nothing_is_written(trained, multifit, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")  # the width of plan.txt
    before = os.listdir()
    out = multifit("check", trained, "--set", "rate=0.1").out
    assert out == Path("runs/small/plan.txt").read_text() and "layers" not in out
    layers = multifit("check", trained, "--layers").out.split("\nlayers\n")[1]
    assert [line.split() for line in layers.splitlines()[2:5]] == [
        ["kind", "Dense", "(10,", "2)", "float32", "8"],
        ["place", "Dense", "(10,", "1)", "float32", "4"],
        ["in", "all", "12"],
    ]
    assert multifit("check", trained, "--quiet").out == "" and os.listdir() == before


def test_a_functions_parameter_gets_the_setting_of_its_name(write, multifit):
    more = """
def trainers(net, rate=7, width=5, seed=3):
    raise LookupError(f"{rate} {width} {seed}")
"""
    with pytest.raises(LookupError, match="0.3 5 0"):
        multifit("check", write(more), "--set", "rate=0.3")


def test_a_profile_is_printed_and_written_on_request(write, multifit):
    result = multifit("profile", write(), "--batches", 2, "--devices", "cpu:2", "--set", "rate=0.1")
    assert result.code == 0 and "all, one after the other" in result.out and "FullyConnected" in result.out
    assert not os.path.exists("runs")
    result = multifit("profile", write(), "--batches", 1, "--output", "here", "--quiet")
    assert result.out.endswith("wrote here/profile.json\n")
    assert json.loads(Path("here/profile.json").read_text())["batches"] == 1
