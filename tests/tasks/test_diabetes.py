"""Diabetes: short trainings with missing labels, without patients who lack some, and weighed."""

import numpy as np
import pytest

from multifit.cli.taskfile import TaskFile

from .commands import TASKS, train

FILE = TASKS / "diabetes.py"
NAMES = ("progression", "mass", "pressure", "lipid")


def test_labels_are_missing(tmp_path):
    history = train(FILE, tmp_path, "epochs=3")
    labels = TaskFile(FILE).module.patients()[1][:332]
    for task, column in zip(NAMES, labels.T):
        present = 1 - np.isnan(column).mean()
        assert 0.5 < present < 0.7 and history[f"train_coverage_{task}"] == pytest.approx([present] * 3)
        assert history[f"val_coverage_{task}"] == [1, 1, 1]
        assert history[f"val_{task}_r2"][2] < 1
    assert history["train_loss"][2] < history["train_loss"][0]


@pytest.mark.parametrize("settings", [["keep=complete"], ["method=DWA"]])
def test_beside_it(settings, tmp_path):
    history = train(FILE, tmp_path, "epochs=1", *settings)
    assert (history["train_coverage_pressure"] == [1]) == (settings == ["keep=complete"])
    assert ("train_weight_pressure" in history) == (settings == ["method=DWA"])
    assert np.isfinite(history["val_pressure_r2"]).all()
