"""Logistic regression: a whole training on real cases, and small ones on a CSV file."""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from multifit.cli import main

from .commands import TASKS, predict, train

FILE = TASKS / "logistic_regression.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cancer")
    train(FILE, folder, "epochs=8")
    return folder


def test_the_figures_of_held_out_cases(run):
    history = json.loads((run / "history.json").read_text())
    assert history["val_accuracy"][-1] >= 0.95 and history["val_f1"][-1] >= 0.95  # after 8 epochs of 20
    assert {"confusion_kind.png", "weights.png"} <= {path.name for path in run.iterdir()}


def test_predict_prints_the_kind_of_each_row(run, capsys):
    cases = load_breast_cancer()
    rows = [",".join(map(str, cases.data[number])) for number in (0, 1, 19, 20)]
    predicted = [line.split(": ")[1].split()[0] for line in predict(FILE, run, capsys, *rows)]
    assert predicted == [["malignant", "benign"][cases.target[number]] for number in (0, 1, 19, 20)]


@pytest.fixture
def table(tmp_path) -> Path:
    """Return a CSV file of 20 cases, whose class is whether the first measure is above the second."""
    measures = np.random.RandomState(0).randn(20, 2) * [1, 100] + [5, 500]
    lines = [f"{a},{b},{int(a - 5 > (b - 500) / 100)}" for a, b in measures]
    path = tmp_path / "cases.csv"
    path.write_text("\n".join(["first,second,above", *lines]) + "\n")
    return path


def test_it_learns_from_a_csv_file(table, tmp_path):
    history = train(FILE, tmp_path / "run", "epochs=15", "dataset=csv", f"root={table}", "batch_size=4")
    assert history["train_accuracy"][-1] > 0.9


def test_a_missing_file_is_an_error(capsys):
    assert main(["check", str(FILE), "--set", "dataset=csv", "root=no.csv"]) == 2
    error = capsys.readouterr().err
    assert "there is no file no.csv" in error
    assert "it must hold a line of titles, then a case in each line" in error
