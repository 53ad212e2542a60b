"""Training processes are killed at any time and resumed; all end like a process that was not killed.

They are killed by SIGKILL, so neither Python nor a handler can do anything at the end. Others resume past a
damaged checkpoint, or lose their terminal or a worker.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from multifit import Every
from multifit.checkpoints import INCOMPLETE, list_checkpoints
from tests.api.resume_runs import DATA, STEPS, Run, end_without_stop, unequal
from tests.cli.conftest import TASK
from tests.common.processes import processes, wait_for
from tests.sampling.test_resume import assert_resumes

ROOT = Path(__file__).parents[1]
KILLS = 20  # of each kind of run
AIMED = 3  # every third is killed while it writes a checkpoint
EVERY = 5
LIMIT = 600.0  # seconds per process; five to fifteen on an idle machine
WRITE = 0.02  # approximate seconds to write a checkpoint
RESUMED = re.compile(r"resuming from \S+: epoch (\d+)(?:, batch (\d+))?$", re.MULTILINE)
KINDS = {  # all have a multiple of five batches in an epoch
    "digits": "nightly/killed.py --epochs 10",
    "workers": "nightly/killed.py --epochs 6 --set workers=2",
    "two devices": "nightly/killed.py --epochs 6 --devices 2",
    "scenes": "tasks/scenes.py --epochs 2 --set size=64 train_count=160 val_count=8",
    "translation": "tasks/translation.py --epochs 3 --set train_count=640 val_count=9 units=8 batch_size=32",
}


class Whole(NamedTuple):
    """A run that was not killed: its command, its folder, and the seconds from its first batch to its end."""

    command: str
    folder: Path
    seconds: float

    @property
    def epochs(self) -> int:
        """The number of epochs."""
        return len(json.loads((self.folder / "history.json").read_text("utf-8"))["train_loss"])

    @property
    def batches(self) -> int:
        """The number of batches of an epoch."""
        return list_checkpoints(self.folder / "checkpoints")[-1].step // self.epochs


@pytest.fixture(scope="module")
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder, command = tmp_path_factory.mktemp("whole") / "run", KINDS[request.param]
    process = start(command, folder)
    begun = wait_for_first_batch(process, folder)
    finish(process)
    return Whole(command, folder, time.monotonic() - begun)


@pytest.mark.parametrize("number", range(KILLS))
@pytest.mark.parametrize("whole", KINDS, indirect=True)
def test_killed_at_any_moment(number: int, whole: Whole, tmp_path: Path, record_property: Any) -> None:
    chance = random.Random(f"{whole.command} {number}")
    aimed = number % AIMED == 0
    share = chance.random()
    kill = at_once if not aimed else in_a_write(chance)
    folder, seconds = killed(whole.command, tmp_path, share * whole.seconds, kill)
    done = done_batches(folder)
    left = (folder / "checkpoints" / INCOMPLETE).exists()
    finish(start(whole.command, folder, "--resume"))
    log = (folder / "log.txt").read_text("utf-8")
    step = step_of(log, whole.batches)
    summary = f"kill {number}: after {seconds:.3f} s, in batch {done + 1}, resumed after step {step}"
    summary += ", one half-written" if left else ""
    print(summary)
    record_property("kill", summary)
    assert left or not aimed
    assert done - done % EVERY <= step <= done + 1, summary
    assert "skipped: " not in log  # a kill leaves no damaged checkpoint
    for name in ("final.params", "history.json"):
        assert (folder / name).read_bytes() == (whole.folder / name).read_bytes(), (
            f"{summary}: {name} differs"
        )
    finished = step == whole.batches * whole.epochs  # then no checkpoint is written, which would clean up
    assert finished or not (folder / "checkpoints" / INCOMPLETE).exists()


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "emptied": lambda path: path.write_bytes(b""),
    "removed": Path.unlink,
}


# Python 3.12 warns about a fork in a process with threads; MXNet has some, and handles it.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("kind", sorted({*DATA} - {"processes that cannot be seeded", "numbered"}))
def test_a_resume_past_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, devices: int, damage: str
) -> None:
    chance = random.Random(f"{kind} {devices} {damage}")
    run = Run(tmp_path / "run", kind, devices, Every(1, "batch"))
    run.crash(chance.randrange(3, STEPS))
    newest = list_checkpoints(run.folder / "checkpoints")[-1].path
    damaged = chance.choice(sorted(path for path in newest.rglob("*") if path.is_file()))
    DAMAGES[damage](damaged)
    run.resume()
    assert any(line.startswith(f"skipped: {newest}: ") for line in caplog.messages), damaged
    assert unequal(run.end(), end_without_stop(run)) == [], damaged


def test_a_terminal_that_goes_away_costs_nothing(tmp_path: Path) -> None:
    """The terminal has no stderr, cannot encode some characters, and is closed; then SIGHUP arrives."""
    path, folder = tmp_path / "small.py", tmp_path / "run"
    path.write_text(TASK + "print('4 × 5 …')\n", "utf-8")
    options = {"shell": 'exec "$@" 2>&-', "PYTHONIOENCODING": "ascii"}
    with processes(tmp_path) as process:
        running = process("train", path, "--epochs", 1_000_000, "--output", folder, **options)
        wait_for(running, "4 ? 5 ?")
        wait_for(running, " 1/1000000 ")
        running.stdout.close()
        running.send_signal(signal.SIGHUP)
        assert running.wait(timeout=60) == 130
    for name in ("final.params", "history.json", "plan.json", "settings.json"):
        assert (folder / name).exists()
    assert "stopped: SIGHUP" in (folder / "log.txt").read_text()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("data", "way", "steps"),
    [
        ("loaders", "proportional", [4]),
        ("loaders", "proportional", [14]),
        ("lists", "round robin", [8]),
        ("loaders with rollover", "proportional", [17]),
        ("loaders that augment", "ratios", [7]),
        ("loaders with workers", "round robin", [13]),
        ("loaders that iterate in their own way", "proportional", [5, 14]),
        ("noisy", "ratios", [10]),
    ],
)
def test_loaders_that_take_turns(tmp_path: Path, data: str, way: str, steps: list[int]) -> None:
    """Runs with a loader for each task resume bit for bit, in each way of sampling."""
    assert_resumes(tmp_path, data, way, steps)


DEADLY = """
import os, signal
import multifit
import numpy as np
from mxnet import gluon
from multifit.engines.loaders import iterate

class Deadly(gluon.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros(1, "float32")

list(iterate(gluon.data.DataLoader(Deadly(), 2, num_workers=2)))
"""


def test_a_process_whose_worker_was_killed_ends() -> None:
    """With an error: it does not hang at exit."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", DEADLY], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1 and "killed by signal 9" in done.stderr.splitlines()[-1]


# -------------------------------------------------------------------------------- processes


def start(task: str, folder: Path, *more: str) -> subprocess.Popen[bytes]:
    """Train in a new process; with --resume, the run's own schedule of checkpoints and settings apply."""
    folder.mkdir(parents=True, exist_ok=True)
    more = more or ("--checkpoint-every", f"{EVERY}batches")
    file, *options = task.split()
    command = [sys.executable, "-m", "multifit", "train", file, "--output", str(folder), *more, *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MULTIFIT_PROGRESS": str(progress_of(folder))}
    with folder.with_suffix(".txt").open("ab") as out:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=out)


def finish(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process, which must succeed."""
    try:
        assert process.wait(LIMIT) == 0, " ".join(map(str, process.args))  # type: ignore[arg-type]
    finally:
        process.kill()
        process.wait()


def killed(task: str, parent: Path, delay: float, kill: Callable[[Any, Path], bool]) -> tuple[Path, float]:
    """Start a training and kill it after a delay; return its folder and the seconds that it ran.

    On a busy machine, a training may end before it is killed; then another is killed after half the delay.
    """
    for attempt in range(8):
        folder = parent / f"run-{attempt}"
        process = start(task, folder)
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
    """Kill the process; return whether it was still training."""
    process.kill()
    return process.wait() == -signal.SIGKILL and not (folder / "final.params").exists()


def in_a_write(chance: random.Random) -> Callable[[Any, Path], bool]:
    """Return a function that kills a process at any time while it writes a checkpoint."""

    def kill(process: subprocess.Popen[bytes], folder: Path) -> bool:
        checkpoints = folder / "checkpoints"
        while process.poll() is None:
            if (checkpoints / INCOMPLETE).exists():
                pause(process, time.monotonic() + chance.random() * WRITE)
                process.send_signal(signal.SIGSTOP)  # so that the hidden folder cannot disappear meanwhile
                os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
                if (checkpoints / INCOMPLETE).exists():
                    return at_once(process, folder)
                process.send_signal(signal.SIGCONT)
        return False

    return kill


# -------------------------------------------------------------------------------- what they did


def wait_for_first_batch(process: subprocess.Popen[bytes], folder: Path) -> float:
    """Wait until a process trains; return the time."""
    limit = time.monotonic() + LIMIT
    while done_batches(folder) < 0:
        assert process.poll() is None and time.monotonic() < limit, folder.with_suffix(".txt").read_text(
            "utf-8"
        )
        time.sleep(0.001)
    return time.monotonic()


def pause(process: subprocess.Popen[bytes], until: float) -> None:
    """Wait until a time or the end of the process."""
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.0005)


def progress_of(folder: Path) -> Path:
    return folder / "progress"


def done_batches(folder: Path) -> int:
    """Return how many batches have certainly been trained on; -1 before the first.

    If the loader counts its batches, two of them are not counted here: the one for the check of the task, and
    the newest, which may not be done yet. Otherwise, the newest checkpoint has the number.
    """
    progress = progress_of(folder)
    if progress.exists():
        return progress.stat().st_size - 2
    return max((info.step for info in list_checkpoints(folder / "checkpoints")), default=-1)


def step_of(log: str, batches: int) -> int:
    """Return the number of batches that came before the place where the run resumed."""
    places = RESUMED.findall(log)
    if not places:
        assert "no checkpoint in" in log
        return 0
    ((epoch, batch),) = places
    return (int(epoch) - 1) * batches + int(batch or 1) - 1
