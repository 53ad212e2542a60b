"""Several processes train as one does, and know of each other's failures: over torch.distributed or Horovod.

What is not installed is skipped. `make distributed` builds an environment with both.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit.checkpoints import newest_checkpoint
from multifit.distributed import ALONE
from tests.common.joint_training import CASES, assert_equal_training, joint_training
from tests.common.launch import KINDS, Job, launch, time_of

LIMIT = 900.0  # seconds for all cases


def run(kind: str, size: int, *arguments: Any, timeout: float = 300.0) -> Job:
    """Run the ranks of nightly/joint_ranks.py; `timeout` is that of their meetings, in seconds."""
    command = ["-m", "nightly.joint_ranks", *map(str, arguments)]
    return launch(kind, size, *command, limit=LIMIT, MULTIFIT_TIMEOUT=str(timeout))


@pytest.fixture(scope="module")
def alone() -> list[dict[str, np.ndarray]]:
    """What one process ends with in every case."""
    return [joint_training(ALONE, **case) for case in CASES.values()]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_several_processes_train_as_one(kind: str, size: int, tmp_path: Path, alone: Any) -> None:
    job = run(kind, size, tmp_path, "train", *CASES)
    assert job.code == 0, job.outputs
    for number, name in enumerate(CASES):
        ranks = [dict(np.load(tmp_path / f"{number}-{size}-{rank}.npz")) for rank in range(size)]
        for joint in ranks:
            assert_equal_training(alone[number], joint)
            for figure, value in joint.items():
                np.testing.assert_array_equal(value, ranks[0][figure], err_msg=f"{name}: {figure}")


TIMEOUT = 20.0  # seconds in which a rank must meet the others, when it starts too
FAILURES = {  # what fails on rank 1, and what the others say of it; None: they stop, too
    "handler": "rank 1 .*handler has a bug",
    "loss": "rank 1 .*loss has a bug",
    "loader": "rank 1 .*loader has a bug",
    "metric": "rank 1 .*metric has a bug",
    "SIGKILL": "rank 0 lost the others",
    "SIGSTOP": f"rank 0 waited {TIMEOUT:g} s for the others",
    "SIGINT": None,
    "SIGTERM": None,
    "nets": r'parameters\["0.weight"\].shape: \[8, 0\] on rank 0, \[9, 0\] on rank 1',
    "specs": r'losses\["ce"\].weight: 1.0 on rank 0, 2.0 on rank 1',
    "data": "different numbers of samples: 72 on rank 0, 80 on rank 1",
    "lengths": "the loader ended on rank 1, and yields more on others",
    "batches": "the loader's first batch is not the same on all ranks",
}
SECONDS = {"SIGSTOP": TIMEOUT + 5.0}  # until the others know


@pytest.mark.parametrize("how", FAILURES)
@pytest.mark.parametrize("kind", KINDS)
def test_all_ranks_know_within_seconds_what_failed(
    kind: str, how: str, tmp_path: Path, record_property: Any
) -> None:
    job = run(kind, 2, tmp_path, "fail", how, timeout=TIMEOUT)
    assert not tmp_path.exists() or newest_checkpoint(tmp_path)[1] == []  # what is there is whole
    expected = FAILURES[how]
    if expected is None:
        for output in job.outputs:
            assert re.search(r"^ENDS \S+ well$", output, re.MULTILINE), output
            assert f"STOPPED {how} (rank 1)" in output
        return
    first, failed = job.outputs
    assert re.search(rf"^ENDS .*{expected}", first, re.MULTILINE), first
    if "FAILS" in failed:  # what is refused at the start never does
        took = time_of("ENDS", first) - time_of("FAILS", failed)
        record_property("seconds", took)
        assert took <= SECONDS.get(how, 3.0), took
