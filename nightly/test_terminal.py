"""A training loses nothing if its terminal goes away."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.cli.conftest import TASK
from tests.common.processes import processes, wait_for


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
