"""``pytest nightly [--device NAME] [--data DIR] [--report DIR]``: train every task, and report."""

import time
from pathlib import Path

import pytest

from .report import Result, Summary, provenance, read_summaries, write_summary
from .table import DEVICES, ROWS


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("nightly")
    group.addoption(
        "--device",
        choices=list(DEVICES),
        default="cpu",
        help="where the rows are trained: cpu and gpu with MXNet, torch (a CPU) and cuda with PyTorch",
    )
    group.addoption("--data", default="datasets", help="folder with the real data sets: mnist, imdb, voc")
    group.addoption("--report", default="runs/nightly", help="where reports and runs go")
    day = int(time.time() // 86400)
    group.addoption(
        "--fuzz-seed", type=int, default=day, help="seed of the generated cases; default: the day"
    )
    group.addoption("--fuzz-examples", type=int, default=50_000, help="number of generated cases")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "row" in metafunc.fixturenames:
        columns = DEVICES[metafunc.config.getoption("device")].columns
        rows = [row for row in ROWS if row.device in columns]
        metafunc.parametrize("row", rows, ids=[row.name.replace(" ", ",") for row in rows])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write the report from the results of the tests in all processes."""
    recorded = [
        (name, value)
        for outcome in ("passed", "failed", "skipped")
        for report in terminalreporter.getreports(outcome)
        for name, value in getattr(report, "user_properties", ())  # a module that is skipped has none
        if name in ("result", "failure", "refused")
    ]
    if not recorded or hasattr(config, "workerinput"):  # a worker of pytest-xdist has only its own results
        return
    folder, device = Path(config.getoption("report")), config.getoption("device")
    results = sorted(Result(**value) for name, value in recorded if name == "result")
    listed = {
        kind: sorted(tuple(value) for name, value in recorded if name == kind)
        for kind in ("failure", "refused")
    }
    now = time.strftime("%Y-%m-%dT%H-%M-%S")
    summary = Summary(now, device, provenance(device), results, listed["failure"], listed["refused"])
    path = write_summary(folder, summary, read_summaries(folder, device))
    terminalreporter.write_line(f"\n{path.read_text('utf-8')}\nreport: {path}")
