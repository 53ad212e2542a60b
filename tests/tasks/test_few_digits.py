"""Few digits: short trainings with a loader for each task, in turn and joined."""

import json

import numpy as np

from multifit.cli.taskfile import TaskFile

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


def test_loaders_are_joined(tmp_path):
    history = train(FILE, tmp_path, "epochs=1", "joint=True", "batch_size=256")
    assert history["train_batches_digit"] == history["train_batches_parity"] == [6]
    assert np.isfinite(history["val_digit_accuracy"]).all()


def test_no_image_is_in_two_sets():
    train_data, val_data = TaskFile(FILE).module.data()
    loaders = [val_data, *train_data.values()]
    assert [sum(len(batch[0]) for batch in loader) for loader in loaders] == [360, 50, 1387]
