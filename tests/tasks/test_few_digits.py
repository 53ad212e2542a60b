"""Few digits: short trainings with a loader for each task, and with the small one alone."""

import json

import numpy as np
import pytest

from .commands import TASKS, train

FILE = TASKS / "few_digits.py"


def test_loaders_take_turns(tmp_path):
    history = train(FILE, tmp_path, "epochs=1", "few=40", "batch_size=64")
    assert history["train_batches_digit"] == [6] and history["train_batches_parity"] == [17]
    assert history["train_passes_digit"] == [6] and history["train_passes_parity"][0] < 1
    assert np.isfinite(history["val_digit_accuracy"]).all() and history["val_parity_accuracy"][0] > 0.6
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert [(loader["name"], loader["sampling"]) for loader in plan["loaders"]] == [
        ("digit", "Proportional"),
        ("parity", "Proportional"),
    ]


def test_beside_it_is_the_small_loader_alone(tmp_path):
    history = train(FILE, tmp_path, "epochs=1", "only=digit")
    assert not [name for name in history if "parity" in name or "batches" in name]


def test_loaders_are_joined(tmp_path):
    history = train(FILE, tmp_path, "epochs=1", "joint=True", "batch_size=256")
    assert history["train_batches_digit"] == history["train_batches_parity"] == [6]
    assert np.isfinite(history["val_digit_accuracy"]).all()


@pytest.mark.parametrize(
    ("only", "expected"), [("", [360, 50, 1387]), ("digit", [360, 50]), ("parity", [360, 1387])]
)
def test_no_image_is_in_two_sets(only, expected):
    from multifit.taskfile import TaskFile

    file = TaskFile(FILE)
    file.set([f"only={only}"])
    train_data, val_data = file.module.data()
    loaders = [val_data, *(train_data.values() if isinstance(train_data, dict) else [train_data])]
    sizes = [sum(len(batch[0]) for batch in loader) for loader in loaders]
    assert sizes == expected
