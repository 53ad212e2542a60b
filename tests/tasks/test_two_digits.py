"""Two digits: short trainings with a method of balancing, with the sum, and of one task alone."""

import numpy as np
import pytest

from .commands import TASKS, train

FILE = TASKS / "two_digits.py"
SMALL = ("train_count=256", "val_count=64", "epochs=2")


def test_tasks_are_weighed(tmp_path):
    history = train(FILE, tmp_path, *SMALL, "method=UPGrad")
    assert {f"train_weight_{task}" for task in ("left", "right", "sum")} <= set(history)
    assert history["train_loss"][1] < history["train_loss"][0]


def test_beside_it_are_single_tasks(tmp_path):
    history = train(FILE, tmp_path, *SMALL, "only=right")
    assert not [name for name in history if "weight" in name or "left" in name]
    assert np.isfinite(history["val_right_accuracy"]).all()


def test_an_unknown_task_is_an_error(tmp_path):
    with pytest.raises(ValueError, match='only="middle" is not a task; tasks are left, right, sum'):
        train(FILE, tmp_path, *SMALL, "only=middle")
