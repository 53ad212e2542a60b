"""Several processes train as one does, and all end if one fails, with torch.distributed and Horovod.

Tests of a library that is not installed are skipped. `make distributed` builds an environment with both.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit.checkpoints import list_checkpoints, newest_checkpoint
from multifit.distributed import ALONE
from tests.common.joint_training import CASES, ON_TORCH, assert_equal_training, joint_training
from tests.common.launch import KINDS, ROOT, Job, launch, time_of

LIMIT = 900.0  # seconds for all cases


def run(kind: str, size: int, *arguments: Any, timeout: float = 300.0) -> Job:
    """Run the ranks of nightly/joint_ranks.py, which wait for each other for `timeout` seconds."""
    command = ["-m", "nightly.joint_ranks", *map(str, arguments)]
    return launch(kind, size, *command, limit=LIMIT, MULTIFIT_TIMEOUT=str(timeout))


@cache
def alone(name: str) -> dict[str, np.ndarray]:
    """Return the results of one process, with MXNet."""
    return joint_training(ALONE, **{**CASES, **ON_TORCH}[name])


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_several_processes_train_as_one(kind: str, size: int, tmp_path: Path) -> None:
    assert_trained_as_one(run(kind, size, tmp_path, "train", *CASES), size, tmp_path, CASES)


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
@pytest.mark.parametrize("size", [2, 4])
def test_several_processes_train_on_torch_as_one_with_mxnet(size: int, tmp_path: Path) -> None:
    job = run("torch", size, tmp_path, "train-on-torch", *ON_TORCH)
    assert_trained_as_one(job, size, tmp_path, ON_TORCH)


def assert_trained_as_one(job: Job, size: int, folder: Path, names: Iterable[str]) -> None:
    """Check that all ranks have the same results in every case, and that these are those of one process."""
    assert job.code == 0, job.outputs
    for number, name in enumerate(names):
        ranks = [dict(np.load(folder / f"{number}-{size}-{rank}.npz")) for rank in range(size)]
        for joint in ranks:
            assert_equal_training(alone(name), joint)
            for figure, value in joint.items():
                np.testing.assert_array_equal(value, ranks[0][figure], err_msg=f"{name}: {figure}")


TIMEOUT = 20.0  # seconds that a rank waits for the others, also when it starts
FAILURES = {  # what fails on rank 1, and the error of rank 0; None if both stop without an error
    **dict.fromkeys(("handler", "loss", "loader", "metric", "SIGKILL", "SIGSTOP"), "PeerError"),
    "SIGINT": None,
    "SIGTERM": None,
    "nets": r'parameters\["0.weight"\].shape: \[8, 0\] on rank 0, \[9, 0\] on rank 1',
    "specs": r'losses\["ce"\].weight: 1.0 on rank 0, 2.0 on rank 1',
    "data": "different numbers of samples: 72 on rank 0, 80 on rank 1",
    "lengths": "different numbers of batches: 9 on rank 0, 6 on rank 1",
    "batches": "the loader's first batch is not the same on all ranks",
}


@pytest.mark.parametrize("how", FAILURES)
@pytest.mark.parametrize("kind", KINDS)
def test_all_ranks_end_within_seconds(kind: str, how: str, tmp_path: Path, record_property: Any) -> None:
    job = run(kind, 2, tmp_path, "fail", how, timeout=TIMEOUT)
    assert not tmp_path.exists() or newest_checkpoint(tmp_path)[1] == []  # no checkpoint is damaged
    expected = FAILURES[how]
    first, failed = job.outputs
    if expected is None:
        for output in job.outputs:
            assert re.search(r"^ENDS \S+ well$", output, re.MULTILINE), output
            assert f"STOPPED {how} (rank 1)" in output
        return
    assert job.code != 0
    if "FAILS" not in failed:  # the fit was refused at its start, on both ranks
        for output in job.outputs:
            assert re.search(rf"^ENDS .*{expected}", output, re.MULTILINE), output
        return
    if not how.startswith("SIG"):
        assert f"RuntimeError: {how} has a bug" in failed and "Traceback" in failed
    waits = TIMEOUT if how == "SIGSTOP" else 0.0
    if kind == "torch" or "ENDS" in first:  # horovodrun may have ended it before
        assert re.search(rf"^ENDS \S+ {expected}", first, re.MULTILINE), first
        assert time_of("ENDS", first) - time_of("FAILS", failed) <= waits + 5
    took = job.ended - time_of("FAILS", failed)  # most of it while Python shuts down
    record_property("seconds", took)
    assert took <= waits + 30, took


# ---- tasks -------------------------------------------------------------------------------------------------

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
