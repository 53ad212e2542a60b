"""``multifit profile`` measures, prints and writes; nothing is trained."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def test_it_prints_a_table_and_writes_table_figures_and_picture(write, multifit):
    result = multifit("profile", write(), "--batches", 4, "--devices", "cpu:2", "--set", "rate=0.1")
    assert result.code == 0 and "sum of the parts" in result.out and "FullyConnected" in result.out
    assert "profiled 4 batches; wrote runs/small: profile.json, profile.png, profile.txt" in result.out
    folder = Path("runs/small")
    assert sorted(os.listdir(folder)) == ["profile.json", "profile.png", "profile.txt"]
    assert (folder / "profile.txt").read_text().strip() in result.out
    profile = json.loads((folder / "profile.json").read_text())
    assert (profile["batches"], profile["devices"]) == (4, ["cpu(0)", "cpu(1)"]) and profile["wall_ms"] > 0
    assert profile["parts"]["update"]["ms"] > 0
    assert (folder / "profile.png").read_bytes().startswith(b"\x89PNG")


def test_another_folder_without_a_table(write, multifit):
    result = multifit("profile", write(), "--batches", 1, "--output", "here", "--quiet")
    assert result.out == "profiled 1 batch; wrote here: profile.json, profile.png, profile.txt\n"
    assert not os.path.exists("runs")


def test_errors(write, multifit):
    result = multifit("profile", write("\ndef data():\n    return []\n"))
    assert result.code == 1 and "train_data is empty" in result.err


def test_without_matplotlib_there_is_no_picture(write, multifit, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = multifit("profile", write(), "--batches", 1)
    assert result.code == 0 and "multifit: no picture: pictures need matplotlib" in result.err
    assert sorted(os.listdir("runs/small")) == ["profile.json", "profile.txt"]
