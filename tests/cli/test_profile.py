"""``multifit profile`` measures, prints and writes; nothing is trained."""

from __future__ import annotations

import json
import os
from pathlib import Path


def test_it_prints_a_table_and_writes_table_and_figures(write, multifit):
    result = multifit("profile", write(), "--batches", 4, "--devices", "cpu:2", "--set", "rate=0.1")
    assert result.code == 0 and "all, one after the other" in result.out and "FullyConnected" in result.out
    assert "profiled 4 batches; wrote runs/small: profile.json, profile.txt" in result.out
    folder = Path("runs/small")
    assert sorted(os.listdir(folder)) == ["profile.json", "profile.txt"]
    assert (folder / "profile.txt").read_text().strip() in result.out
    profile = json.loads((folder / "profile.json").read_text())
    assert (profile["batches"], profile["devices"]) == (4, ["cpu(0)", "cpu(1)"]) and profile["wall"] > 0
    assert {"forward", "backward"} < {part["name"] for part in profile["parts"]}


def test_another_folder_without_a_table(write, multifit):
    result = multifit("profile", write(), "--batches", 1, "--output", "here", "--quiet")
    assert result.out == "profiled 1 batch; wrote here: profile.json, profile.txt\n"
    assert not os.path.exists("runs")


def test_errors(write, multifit):
    result = multifit("profile", write("\ndef data():\n    return []\n"))
    assert result.code == 1 and "train_data is empty" in result.err
