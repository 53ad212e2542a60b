"""Digits: one whole training of three heads reaches its figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from multifit.cli import main

FILE = Path(__file__).parents[2] / "tasks" / "digits.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Train the whole task once; return its folder."""
    folder = tmp_path_factory.mktemp("digits")
    assert main(["train", str(FILE), "--output", str(folder), "--quiet"]) == 0
    return folder


@pytest.fixture
def last(run) -> dict[str, float]:
    """Return the figures of the last epoch."""
    return {name: values[-1] for name, values in json.loads((run / "history.json").read_text()).items()}


@pytest.mark.parametrize("figure", ["val_digit_accuracy", "val_parity_accuracy"])
def test_accuracy_on_held_out_digits(last, figure):
    assert 0.97 <= last[figure] <= 1


def test_the_error_of_the_ink(last):
    # The ink is standardised: always predicting the mean has an error of 0.79.
    assert last["val_ink_error"] < 0.3


def test_the_objective_is_the_weighted_sum(last):
    for stage in ("train", "val"):
        parts = {name: last[f"{stage}_{name}"] for name in ("digit", "parity", "ink")}
        expected = parts["digit"] + 0.5 * parts["parity"] + 0.5 * parts["ink"]
        assert last[f"{stage}_loss"] == pytest.approx(expected, rel=1e-4)


def test_each_trainer_has_its_learning_rate(last):
    assert (last["lr_body"], last["lr_heads"]) == (2e-3, 5e-3)


def test_the_files_of_the_run(run):
    names = {path.name for path in run.iterdir()}
    assert names == {
        "history.json", "plan.txt", "plan.json", "final.params", "settings.json", "log.txt", "checkpoints",
        "tensorboard", "curves.png", "samples.png",
    }  # fmt: skip
    assert (run / "samples.png").stat().st_size > 20_000
