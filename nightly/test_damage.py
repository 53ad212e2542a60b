"""On a busy machine, runs that resume past a damaged checkpoint end bit for bit like uninterrupted runs.

Once, one of 362 such runs under heavy load was reported to end differently; the cause was never found.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

from multifit import Every
from multifit.checkpoints import list_checkpoints
from tests.api.resume_runs import DATA, STEPS, Run, end_without_stop, unequal

RESUMES = 10  # of each kind of data, on one device and on two
BURNERS = 3  # processes per core that do nothing but compute
KINDS = [kind for kind in DATA if kind not in ("processes that cannot be seeded", "numbered")]
DAMAGES: dict[str, Callable[[Path], Any]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "emptied": lambda path: path.write_bytes(b""),
    "changed": lambda path: path.write_bytes(changed(path.read_bytes())),
    "removed": Path.unlink,
}

# Python 3.12 warns about a fork in a process with threads; MXNet has some, and handles it.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture(scope="module", autouse=True)
def busy() -> Iterator[None]:
    """Keep the machine busy."""
    burners = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(BURNERS * (os.cpu_count() or 1))
    ]
    yield
    for burner in burners:
        burner.kill()
        burner.wait()


@pytest.mark.parametrize("number", range(RESUMES))
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_resume_past_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, devices: int, number: int
) -> None:
    chance = random.Random(f"{kind} {devices} {number}")
    run = Run(tmp_path / "run", kind, devices, Every(1, "batch"))
    run.crash(chance.randrange(3, STEPS))
    newest = list_checkpoints(run.folder / "checkpoints")[-1]
    damaged = chance.choice(sorted(path for path in newest.path.rglob("*") if path.is_file()))
    damage = chance.choice(list(DAMAGES))
    DAMAGES[damage](damaged)
    run.resume()
    skipped = f"skipped: {newest.path}: "
    assert any(line.startswith(skipped) for line in caplog.messages), (damage, damaged)
    assert unequal(run.end(), end_without_stop(run)) == [], (damage, damaged)


def changed(content: bytes) -> bytes:
    """Return the content with one byte changed."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
