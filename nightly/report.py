"""Reports of nightly runs: each is saved as JSON, the latest also as Markdown, compared with earlier ones."""

import json
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import multifit
from multifit.utils.files import atomic_write

import mxnet  # isort: skip
import numpy  # isort: skip

__all__ = ["Result", "Summary", "markdown", "provenance", "read_summaries", "write_summary"]

DRIFT = 0.01  # a figure that is this much below the best so far is marked


class Result(NamedTuple):
    """The value of a figure of a row."""

    row: str
    figure: str
    value: float
    floor: float
    epochs: int
    seconds: float
    rate: float = 0.0  # samples per second, the median of the epochs

    @property
    def key(self) -> tuple[str, str]:
        """What identifies it in other reports."""
        return self.row, self.figure


class Summary(NamedTuple):
    """One nightly run: its time, device, versions and results; rows that failed or were refused, and why."""

    time: str
    device: str
    provenance: dict[str, str]
    results: Sequence[Result]
    failures: Sequence[tuple[str, str]] = ()
    refused: Sequence[tuple[str, str]] = ()

    def value(self, key: tuple[str, str]) -> float | None:
        """Return the value of a figure, None if it was not measured."""
        return next((result.value for result in self.results if result.key == key), None)


def provenance(device: str = "cpu") -> dict[str, str]:
    """Return the versions and the commit that the figures were measured with, and PyTorch's GPU."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        commit = subprocess.run(
            command, capture_output=True, text=True, cwd=Path(__file__).parent
        ).stdout.strip()
    except OSError:
        commit = ""
    return {
        "commit": commit or "unknown",
        "multifit": multifit.__version__,
        "mxnet": mxnet.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {platform.system()}",
        **(_of_torch() if device in ("torch", "cuda") else {}),
    }


def _of_torch() -> dict[str, str]:
    import torch  # is not installed everywhere

    gpu = {"GPU": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return {"torch": torch.__version__, **gpu}


def read_summaries(folder: Path, device: str) -> list[Summary]:
    """Return the reports in a folder, the oldest first."""
    summaries = []
    for path in sorted(folder.glob(f"*-{device}.json")):
        fields = json.loads(path.read_text("utf-8"))
        fields["results"] = [Result(**result) for result in fields["results"]]
        for name in ("failures", "refused"):
            fields[name] = tuple(map(tuple, fields.get(name, ())))
        summaries.append(Summary(**fields))
    return summaries


def write_summary(folder: Path, summary: Summary, before: Sequence[Summary]) -> Path:
    """Write a report as JSON and as Markdown; return the path of the latter."""
    fields = {**summary._asdict(), "results": [result._asdict() for result in summary.results]}
    atomic_write(folder / f"{summary.time}-{summary.device}.json", json.dumps(fields, indent=1) + "\n")
    path = folder / f"report-{summary.device}.md"
    atomic_write(path, markdown(summary, before))
    return path


def markdown(summary: Summary, before: Sequence[Summary]) -> str:
    """Return a report as Markdown, compared with the previous report and with the best so far."""
    passed = sum(result.value >= result.floor for result in summary.results)
    lines = [
        f"# Nightly, {summary.device}, {summary.time}",
        "",
        f"{passed} of {len(summary.results)} figures reach their floor. "
        + ", ".join(f"{name} {value}" for name, value in summary.provenance.items()),
        "",
        "| task | figure | measured | floor | margin | before | best | epochs | seconds | samples/s |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
        *(_line(result, before) for result in summary.results),
    ]
    for heading, rows in (
        ("These failed:", summary.failures),
        ("These are refused by the engine:", summary.refused),
    ):
        if rows:
            lines += ["", heading, "", *(f"* {row}: {why}" for row, why in rows)]
    return "\n".join(lines) + "\n"


def _line(result: Result, before: Sequence[Summary]) -> str:
    """Return a row, with the change since the best report, which shows slow declines too."""
    values = [value for value in (summary.value(result.key) for summary in before) if value is not None]
    changes = [result.value - values[-1], result.value - max(values)] if values else []
    shown = [f"{change:+.4f}" for change in changes] or ["", ""]
    if changes and changes[1] <= -DRIFT:
        shown[1] = f"**{shown[1]}**"
    measured = f"{result.value:.4f}" if result.value >= result.floor else f"**{result.value:.4f}**"
    cells = [result.row, result.figure, measured, f"{result.floor:g}", f"{result.value - result.floor:+.4f}"]
    speed = f"{result.rate:.0f}" if result.rate else ""
    return "| " + " | ".join([*cells, *shown, str(result.epochs), f"{result.seconds:.0f}", speed]) + " |"
