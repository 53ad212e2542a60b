"""Tasks have the same figures in two processes as on two devices: BatchNorm sees the same samples on both."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from multifit.checkpoints import list_checkpoints
from tests.common.launch import KINDS, ROOT, launch

COMMON = ("epochs=2", "train_count=12", "val_count=6", "batch_size=4")
# With BatchNorm, val_ figures differ: each device has running statistics of its own. At the usual rates of
# scenes, rounding can change which hard negatives SSD's loss takes, and so later figures by 1e-3.
TASKS = {
    "scenes": ("size=64", "body_rate=2e-4", "head_rate=4e-4"),
    "detection": ("size=64", "dataset=shapes", "base=tiny"),
    "segmentation": ("size=64",),  # gluoncv's head has Dropout
    "translation": ("units=8", "beam=2"),
}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_have_the_figures_of_two_devices(kind: str, task: str, tmp_path: Path) -> None:
    command = ["-m", "multifit", "train", f"tasks/{task}.py", "--quiet", "--seed", "3"]
    settings = ["--set", *COMMON, *TASKS[task]]
    one, two = tmp_path / "one", tmp_path / "two"
    subprocess.run(
        [sys.executable, *command, "--devices", "2", "--output", str(one), *settings], cwd=ROOT, check=True
    )
    job = launch(kind, 2, *command, "--output", str(two), *settings, limit=600)
    assert job.code == 0, job.outputs
    expected, joint = (json.loads((folder / "history.json").read_text()) for folder in (one, two))
    assert expected.keys() == joint.keys()
    for figure, values in expected.items():
        if figure.startswith("val_") and task != "translation":
            continue
        np.testing.assert_allclose(joint[figure], values, rtol=1e-4, atol=1e-5, err_msg=figure)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_two_processes_goes_on_in_mid_epoch(kind: str, tmp_path: Path) -> None:
    whole, two, one = tmp_path / "whole", tmp_path / "two", tmp_path / "one"
    command = ["-m", "multifit", "train", "nightly/killed.py", "--epochs", "3", "--output"]
    job = launch(kind, 2, *command, str(whole), "--checkpoint-every", "5batches")
    assert job.code == 0, job.outputs
    for folder in (two, one):
        shutil.copytree(whole, folder)
        (folder / "final.params").unlink()
        shutil.rmtree(list_checkpoints(folder / "checkpoints")[-1].path)
    job = launch(kind, 2, *command, str(two), "--resume")
    assert job.code == 0, job.outputs
    for name in ("final.params", "history.json"):
        assert (two / name).read_bytes() == (whole / name).read_bytes(), name
    subprocess.run([sys.executable, *command, str(one), "--resume"], cwd=ROOT, check=True)
    log = (one / "log.txt").read_text("utf-8")
    assert "2 processes" in log, log
    expected, alone = (json.loads((folder / "history.json").read_text()) for folder in (whole, one))
    for figure in ("train_loss", "train_accuracy", "val_loss"):  # random layers draw other numbers
        np.testing.assert_allclose(alone[figure], expected[figure], rtol=0.1, err_msg=figure)
