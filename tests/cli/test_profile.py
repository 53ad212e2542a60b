"""``multifit profile`` measures and prints; nothing is trained."""

import json
import os
from pathlib import Path


def test_it_prints_a_table_and_writes_nothing(write, multifit):
    result = multifit("profile", write(), "--batches", 4, "--devices", "cpu:2", "--set", "rate=0.1")
    assert result.code == 0 and "all, one after the other" in result.out and "FullyConnected" in result.out
    assert not os.path.exists("runs")


def test_it_also_writes_to_a_folder(write, multifit):
    result = multifit("profile", write(), "--batches", 1, "--output", "here", "--quiet")
    assert result.out.endswith("wrote here/profile.json\n")
    assert json.loads(Path("here/profile.json").read_text())["batches"] == 1


def test_errors(write, multifit):
    result = multifit("profile", write("\ndef data():\n    return []\n"))
    assert result.code == 1 and "train_data is empty" in result.err
