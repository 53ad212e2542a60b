"""Training processes are killed at any time and resumed: all end like the one that was not killed.

With SIGKILL, neither Python nor a handler can do anything at the end.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
KILLS = 30
AIMED = 3  # every third is killed while it writes a checkpoint
BATCHES = 15  # of an epoch
EVERY = 5
LIMIT = 120.0  # seconds per process; about five on an idle machine
WRITE = 0.02  # approximate seconds to write a checkpoint
HIDDEN = ".checkpoint-*"
RESUMED = re.compile(r"resuming from \S+: epoch (\d+)(?:, batch (\d+))?$", re.MULTILINE)


class Whole(NamedTuple):
    """The run that was not killed: its folder, and the seconds from its first batch to its end."""

    folder: Path
    seconds: float


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole") / "run"
    process = start(folder)
    begun = wait_for_first_batch(process, folder)
    finish(process)
    return Whole(folder, time.monotonic() - begun)


@pytest.mark.parametrize("number", range(KILLS))
def test_killed_at_any_moment(number: int, whole: Whole, tmp_path: Path, record_property: Any) -> None:
    chance = random.Random(number)
    aimed = number % AIMED == 0
    share = chance.random()
    folder, seconds = killed(tmp_path, share * whole.seconds, at_once if not aimed else in_a_write(chance))
    done = done_batches(folder)
    left = len(list((folder / "checkpoints").glob(HIDDEN)))
    finish(start(folder, "--resume"))
    log = (folder / "log.txt").read_text("utf-8")
    step = step_of(log)
    summary = f"kill {number}: after {seconds:.3f} s, in batch {done + 1}, resumed after step {step}"
    summary += f", {left} half-written" if left else ""
    print(summary)
    record_property("kill", summary)
    assert left or not aimed
    assert done - done % EVERY <= step <= done + 1, summary
    assert "skipped: " not in log  # a kill does not leave damaged checkpoints
    for name in ("final.params", "history.json"):
        assert (folder / name).read_bytes() == (whole.folder / name).read_bytes(), (
            f"{summary}: {name} differs"
        )
    assert len(json.loads((folder / "history.json").read_text("utf-8"))["train_loss"]) == 20
    assert not list((folder / "checkpoints").glob(HIDDEN))


# -------------------------------------------------------------------------------- processes


def start(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    """Train in a new process; with --resume, the schedule is that of the run."""
    folder.mkdir(parents=True, exist_ok=True)
    more = more or ("--checkpoint-every", f"{EVERY}batches")
    command = [sys.executable, "-m", "multifit", "train", "nightly/killed.py", "--output", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MULTIFIT_PROGRESS": str(progress_of(folder))}
    with (folder / "out.txt").open("ab") as out:
        return subprocess.Popen([*command, *more], cwd=ROOT, env=environment, stdout=out, stderr=out)


def finish(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process, which must succeed."""
    try:
        assert process.wait(LIMIT) == 0, " ".join(map(str, process.args))  # type: ignore[arg-type]
    finally:
        process.kill()
        process.wait()


def killed(parent: Path, delay: float, kill: Callable[[Any, Path], bool]) -> tuple[Path, float]:
    """Start a training and kill it after a delay; return its folder and the seconds that it ran.

    On a busy machine it may end before that, and is tried again with half the delay.
    """
    for attempt in range(8):
        folder = parent / f"run-{attempt}"
        process = start(folder)
        try:
            begun = wait_for_first_batch(process, folder)
            pause(process, begun + delay / 2**attempt)
            if kill(process, folder):
                return folder, time.monotonic() - begun
        finally:
            process.kill()
            process.wait()
    raise AssertionError(f"after {delay} s and less the training was always over")


def at_once(process: subprocess.Popen[bytes], folder: Path) -> bool:
    """Kill; return whether the process was still training."""
    process.kill()
    return process.wait() == -signal.SIGKILL and not (folder / "final.params").exists()


def in_a_write(chance: random.Random) -> Callable[[Any, Path], bool]:
    """Return a function that kills a process at any time while it writes a checkpoint."""

    def kill(process: subprocess.Popen[bytes], folder: Path) -> bool:
        checkpoints = folder / "checkpoints"
        while process.poll() is None:
            if any(checkpoints.glob(HIDDEN)):
                pause(process, time.monotonic() + chance.random() * WRITE)
                process.send_signal(signal.SIGSTOP)  # so that it cannot remove the folder meanwhile
                os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
                if any(checkpoints.glob(HIDDEN)):
                    return at_once(process, folder)
                process.send_signal(signal.SIGCONT)
        return False

    return kill


# -------------------------------------------------------------------------------- what they did


def wait_for_first_batch(process: subprocess.Popen[bytes], folder: Path) -> float:
    """Wait until a process trains; return the time."""
    limit = time.monotonic() + LIMIT
    while done_batches(folder) < 0:
        assert process.poll() is None and time.monotonic() < limit, (folder / "out.txt").read_text("utf-8")
        time.sleep(0.001)
    return time.monotonic()


def pause(process: subprocess.Popen[bytes], until: float) -> None:
    """Wait until a time or the end of the process."""
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.0005)


def progress_of(folder: Path) -> Path:
    return folder / "progress"


def done_batches(folder: Path) -> int:
    """Return how many batches have certainly been trained on.

    The loader has yielded one more, and one before for the check of the task.
    """
    progress = progress_of(folder)
    return (progress.stat().st_size if progress.exists() else 0) - 2


def step_of(log: str) -> int:
    """Return the number of batches before the place where the run was resumed."""
    places = RESUMED.findall(log)
    if not places:
        assert "no checkpoint in" in log
        return 0
    ((epoch, batch),) = places
    return (int(epoch) - 1) * BATCHES + int(batch or 1) - 1
