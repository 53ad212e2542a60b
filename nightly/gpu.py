"""``python -m nightly.gpu``: what a GPU does with multifit's nets, in one command, into ``runs/gpu``.

Two parts: `steps` are training steps of each case, on multifit's engine on PyTorch and in a loop written for
PyTorch, in turns; `rows` trains every row of the table of floors. Each case that is measured is written at
once, so that what was measured stays if the time runs out. docs/gpu.md says what is measured, and how.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

import torch

from multifit.files import atomic_write

from .benchmarks.engines import HAND, opened, turn_of
from .benchmarks.machine import machine
from .benchmarks.results import markdown, table_lines
from .benchmarks.rounds import alternate
from .benchmarks.rows import OURS, Row
from .benchmarks.subjects import HEADS, NMT, SINGLES, SSD, Subject

__all__ = ["CASES", "PARTS", "main"]

PARTS = ("steps", "rows")
PRECISIONS = ("float32", "bfloat16")
WANTED = ("2 heads", "ResNet18 thumbnail", "tiny FCN, mean IoU")
CASES: tuple[Subject, ...] = (*(case for case in (*HEADS, *SINGLES) if case.name in WANTED), SSD, NMT)
ROUNDS = 20
OPTIONS = {
    OURS: {},
    f"{OURS}, CUDA graphs": {"compile": "cudagraphs"},
    f"{OURS}, compiled": {"compile": True},
}
ROOT = Path(__file__).parents[1]


class Report:
    """What was measured so far, written with each addition."""

    def __init__(self, folder: Path, facts: Mapping[str, str]) -> None:
        self._time, self._folder = time.strftime("%Y-%m-%dT%H-%M-%S"), folder
        self._facts, self._rows, self._shares = dict(facts), [], []
        self._refused: list[tuple[str, str]] = []
        self.nightly = ""

    @property
    def path(self) -> Path:
        """The report for reading."""
        return self._folder / f"{self._time}.md"

    def add(
        self, rows: Sequence[Row], shares: Sequence[Mapping[str, Any]], refused: Mapping[str, str]
    ) -> None:
        """Add what was measured of a case."""
        self._rows += rows
        self._shares += shares
        self._refused += refused.items()
        self.write()

    def write(self) -> None:
        """Write everything as JSON and as Markdown."""
        content = {
            "time": self._time,
            "machine": self._facts,
            "rows": [vars(row) for row in self._rows],
            "device": self._shares,
            "refused": dict(self._refused),
            "nightly": self.nightly,
        }
        atomic_write(self.path.with_suffix(".json"), json.dumps(content, indent=1) + "\n")
        atomic_write(self.path, self._text())

    def _text(self) -> str:
        parts = [markdown(self._time, self._facts, self._rows).replace("# Benchmarks", "# On a GPU", 1)]
        if self._shares:
            cells = [
                [each["case"], each["contender"], *map(_number, _of_device(each))] for each in self._shares
            ]
            header = ["", "", "peak memory, MiB", "share of the time in which the GPU is idle"]
            parts += ["## Memory and idle time", table_lines(header, cells)]
        if self._refused:
            parts += ["## Not trained", "\n".join(f"* {name}: {why}" for name, why in self._refused)]
        return "\n\n".join([*parts, *filter(None, [self.nightly])]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and return the exit status: 1 if a row of the table fails."""
    options = _parser().parse_args(arguments)
    parts = options.parts or PARTS
    device = torch.device(options.device)
    report = Report(Path(options.output), {**_device_facts(device), **machine()})
    if "steps" in parts:
        for case in CASES:
            if not options.cases or str(case).lower().startswith(tuple(map(str.lower, options.cases))):
                _measure(case, device, options, report)
    status = _train_rows(device, options, report) if "rows" in parts else 0
    print(f"written to {report.path} and {report.path.with_suffix('.json').name}")
    return status


def _measure(case: Subject, device: torch.device, options: argparse.Namespace, report: Report) -> None:
    """Add a case's rows: one for each precision and way of running, each over the loop in PyTorch."""
    for precision in PRECISIONS:
        name = f"{case}, {precision}"
        where = {"device": str(device), "precision": precision}
        contenders = {each: {"engine": "torch", "options": o, **where} for each, o in OPTIONS.items()}
        contenders[HAND] = {"engine": "hand", **where}
        contenders[f"{HAND}, compiled"] = {"engine": "hand", "options": {"compiled": True}, **where}
        if options.eager:
            contenders = {each: contenders[each] for each in (OURS, HAND)}
        with ExitStack() as stack:
            children, refused = opened(stack, case, contenders)
            times = alternate(
                {each: turn_of(child) for each, child in children.items()}, options.epochs or ROUNDS
            )
            shares = [
                {"case": name, "contender": each, "memory": child.ask("memory"), "idle": child.ask("idle")}
                for each, child in children.items()
            ]
        rows = list(_rows(name, times, len(case.batches())))
        report.add(rows, shares, {f"{name}, {each}": why for each, why in refused.items()})
        print(f"{name}: measured {', '.join(times) or 'nothing'}", flush=True)


def _rows(name: str, times: Mapping[str, list[float]], steps: int) -> Iterator[Row]:
    """Yield a row for each way in which multifit runs, beside the loops."""
    others = {each: values for each, values in times.items() if each not in OPTIONS}
    for each in OPTIONS:
        if each in times:
            case = f"{name}{each.removeprefix(OURS)}"
            yield Row.of_seconds("gpu", case, {OURS: times[each], **others}, steps)


def _train_rows(device: torch.device, options: argparse.Namespace, report: Report) -> int:
    """Train the rows of the table by pytest, as `make nightly` does, and add its report."""
    column, folder = ("cuda" if device.type == "cuda" else "torch"), Path(options.output) / "nightly"
    command = [sys.executable, "-m", "pytest", "nightly/test_quality.py", "-q", "--device", column]
    command += [
        "--report",
        str(folder),
        "--data",
        options.data,
        *(["-k", options.rows] if options.rows else []),
    ]
    status = subprocess.run(command, cwd=ROOT).returncode
    path = folder / f"report-{column}.md"
    report.nightly = path.read_text("utf-8").replace("# ", "## ", 1) if path.exists() else ""
    report.write()
    return status


def _of_device(share: Mapping[str, Any]) -> tuple[float | None, float | None]:
    return share["memory"], share["idle"]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _device_facts(device: torch.device) -> dict[str, str]:
    facts = {"device": str(device), "torch": torch.__version__}
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        facts["device"] = f"{torch.cuda.get_device_name(device)}, compute capability {major}.{minor}"
        facts["CUDA"] = str(torch.version.cuda)
        facts["TF32"] = str(torch.backends.cuda.matmul.allow_tf32)
    return facts


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measure multifit on a GPU, with PyTorch.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{' and '.join(PARTS)}; default: both")
    parser.add_argument("--device", default="cuda:0", help='a device of PyTorch; "cpu" to try the command')
    parser.add_argument("--case", dest="cases", nargs="+", default=[], help="cases whose name begins so")
    parser.add_argument("--eager", action="store_true", help="leave out what torch.compile compiles")
    parser.add_argument("--epochs", type=int, help=f"rounds of each contender, by default {ROUNDS}")
    parser.add_argument("--rows", help="an expression of pytest's -k that selects rows of the table")
    parser.add_argument("--data", default="datasets", help="folder with the real data sets: mnist, imdb, voc")
    parser.add_argument("--output", default="runs/gpu", help="the folder of the reports")
    return parser


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before MXNet reads it, in the processes that follow
    sys.exit(main())
