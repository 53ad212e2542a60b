"""If a rank fails, the others raise an error that names it in time; tested with the real libraries.

The seconds are written to ``runs/nightly/distributed.md``; those in docs/distributed.md are from there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.common.launch import KINDS, launch, time_of

TIMEOUT = 6.0  # of meetings
LATE = TIMEOUT + 5


class Case(NamedTuple):
    """How rank 1 fails, what the others' error says, and within how many seconds they must raise it."""

    how: str
    message: str
    known: float


CASES = [
    Case("raises", r"rank 1 \(.*failed: ValueError: a sample cannot be decoded", 2),
    Case("SIGINT", r"rank 1 \(.*failed: KeyboardInterrupt", 2),
    Case("SIGKILL", r"rank 1 \(.* has ended", 5),
    Case("ends", r"rank 1 \(.* has ended", 5),
    Case("is elsewhere", r'rank 0 \(.*is at "a batch"; rank 1 \(.*is at "another place"', 2),
    Case("hangs", r"waited 6 s for the others .*rank 1 \(.* has not arrived", LATE),
    Case("SIGSTOP", r"rank 1 \(.* is stopped", LATE),
]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.how)
@pytest.mark.parametrize("kind", KINDS)
def test_the_others_know_of_a_failure_and_end(
    kind: str, case: Case, size: int, request: pytest.FixtureRequest
) -> None:
    file = str(Path(__file__).with_name("failing_rank.py"))
    job = launch(kind, size, file, case.how, str(TIMEOUT), limit=60)
    failed = time_of("FAILS", job.outputs[1])
    others = [output for rank, output in enumerate(job.outputs) if rank != 1]
    if kind == "horovod":  # it terminates the others when a rank has ended, perhaps before they know
        others = [output for output in others if "ENDS" in output or "Terminated" not in output]
    for output in others:
        assert re.search(rf"ENDS \S+ PeerError .*{case.message}", output), job.outputs
        assert time_of("ENDS", output) - failed < case.known
    known = max((time_of("ENDS", output) for output in others), default=job.ended) - failed
    assert others or job.ended - failed < case.known
    over = job.ended - failed
    folder = Path(request.config.getoption("report"))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "distributed.md").open("a", encoding="utf-8") as table:
        table.write(f"| {kind} | {size} | {case.how} | {known:.2f} s | {over:.1f} s | {job.code} |\n")
