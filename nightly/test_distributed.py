"""Several processes train as one does, and know of each other's failures: over torch.distributed or Horovod.

What is not installed is skipped. `make distributed` builds an environment with both.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from multifit.checkpoints import newest_checkpoint
from tests.common.joint_training import CASES, assert_equal_training
from tests.common.launch import KINDS

ROOT = Path(__file__).parents[1]
LIMIT = 600.0  # seconds for all cases


class Ended(NamedTuple):
    """How a rank ended: its exit code and what it printed."""

    code: int
    output: str

    @property
    def end(self) -> str:
        """When and how it ended, in its own words."""
        found = re.search(r"^ENDS (.*)$", self.output, re.MULTILINE)
        return found[1] if found else ""

    def time(self, word: str) -> float:
        """Return when it printed a word, in seconds."""
        found = re.search(rf"^{word} (\S+)", self.output, re.MULTILINE)
        return float(found[1]) if found else float("nan")


def run(kind: str, size: int, *arguments: Any, timeout: float = 300.0) -> list[Ended]:
    """Start the ranks, wait for them, and return how each ended; what hangs is killed, and fails the test."""
    command = [sys.executable, "-m", "nightly.joint_ranks", *map(str, arguments)]
    shared = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MULTIFIT_TIMEOUT": str(timeout)}
    processes = [
        subprocess.Popen(
            command,
            env={**shared, **variables},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for variables in launched(kind, size)
    ]
    ended = []
    try:
        for process in processes:
            output = process.communicate(timeout=LIMIT)[0]
            ended.append(Ended(process.returncode, output))
            if process.returncode != 0:
                break  # a rank that is stopped never ends
    finally:
        for process in processes:
            process.kill()
    ended += [Ended(p.wait(), p.communicate()[0]) for p in processes[len(ended) :]]
    return ended


def launched(kind: str, size: int) -> list[dict[str, str]]:
    """Return the variables that a launcher sets for each rank; none for a single process."""
    if size == 1:
        return [{}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    return [
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        for rank in range(size)
    ]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: Any) -> list[dict[str, np.ndarray]]:
    """What one process ends with in every case."""
    folder = tmp_path_factory.mktemp("alone")
    (ended,) = run("none", 1, folder, "train", *CASES)
    assert ended.code == 0, ended.output
    return [dict(np.load(folder / f"{number}-1-0.npz")) for number in range(len(CASES))]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_several_processes_train_as_one(kind: str, size: int, tmp_path: Path, alone: Any) -> None:
    for ended in run(kind, size, tmp_path, "train", *CASES):
        assert ended.code == 0, ended.output
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
    ended = run(kind, 2, tmp_path, "fail", how, timeout=TIMEOUT)
    assert not tmp_path.exists() or newest_checkpoint(tmp_path)[1] == []  # what is there is whole
    first, failed = ended
    expected = FAILURES[how]
    if expected is None:
        for rank in ended:
            assert rank.end.endswith("well"), rank.output
            assert f"STOPPED {how} (rank 1)" in rank.output
        return
    assert re.search(expected, first.end), first.output
    took = float(first.end.split()[0]) - failed.time("FAILS")
    record_property("seconds", took)
    assert not took > SECONDS.get(how, 3.0), took  # what is refused at the start never "fails"
