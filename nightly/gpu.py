"""``python -m nightly.gpu``: measure multifit on a GPU, with PyTorch as engine, and write to ``runs/gpu``.

It has two parts. `steps` measures training steps of each case, with multifit and with a loop written in
PyTorch, which take turns. `rows` trains every row of the table of floors. The results are written after each
case, so that nothing measured is lost if the time runs out. benchmarks/README.md says how it is measured.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from multifit.torch.devices import device_of
from multifit.utils.text import quoted

from .benchmarks.child import Child
from .benchmarks.engines import HAND, LIMIT, opened, turn_of
from .benchmarks.results import OURS, PRECISIONS, Row, machine
from .benchmarks.rounds import alternate
from .benchmarks.subjects import HEADS, LARGE, NMT, SINGLES, SSD, Subject
from .gpu_report import Report

__all__ = ["CASES", "PARTS", "main"]

PARTS = ("steps", "rows")
WANTED = ("2 heads", "ResNet18 thumbnail", "tiny FCN, mean IoU")
CASES: tuple[Subject, ...] = (
    *(case for case in (*HEADS, *SINGLES) if case.name in WANTED), SSD, NMT, *LARGE
)  # fmt: skip
ROUNDS = 20
STEPS = 50  # the fewest in a measured epoch, for epochs are long where people use a GPU
COMPILED = ", compiled"
MODULE = f"{OURS}, a module"  # the net of the loop in PyTorch
OPTIONS = {
    OURS: {},
    f"{OURS}, operator by operator": {"compile": False},
    f"{OURS}{COMPILED}": {"compile": True},
}
ROOT = Path(__file__).parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and return the exit status: 1 if a row of the table fails."""
    parser = _parser()
    options = parser.parse_args(arguments)
    parts, cases = options.parts or PARTS, _chosen(options, parser)
    try:
        device = device_of(options.device)
    except ValueError as error:  # such as a build of PyTorch for CPUs alone
        parser.error(f"PyTorch {torch.__version__} in {sys.executable}: {error}")
    table = "gpu" if device.type == "cuda" else "cpu"
    report = Report(Path(options.output), {**_device_facts(device), **machine()}, table)
    if "steps" in parts:
        for case in cases:
            _measure(case, device, options, report)
    status = _train_rows(device, options, report) if "rows" in parts else 0
    print(f"written to {report.path} and {report.path.with_suffix('.json').name}")
    return status


def _measure(case: Subject, device: torch.device, options: argparse.Namespace, report: Report) -> None:
    """Add a case's rows: one for each precision and way of running, each compared with the PyTorch loop."""
    with ExitStack() as stack, ThreadPoolExecutor(len(PRECISIONS)) as pool:
        contenders = [_contenders(device, precision, options.eager) for precision in PRECISIONS]
        started = list(pool.map(partial(opened, stack, case), contenders))
        for precision, (children, missing) in zip(PRECISIONS, started):
            name = f"{case}, {precision}"
            report.add(missing={f"{name}, {each}": why for each, why in missing.items()})
            try:
                _take_turns(case, name, children, options.epochs or ROUNDS, report)
            except RuntimeError as error:  # a process has ended; the others may still be measured
                report.add(missing={name: " ".join(str(error).split())})
                print(f"{name}: {error}", flush=True)


def _contenders(device: torch.device, precision: str, eager: bool) -> dict[str, dict[str, Any]]:
    """Return the arguments of each contender of one precision."""
    where = {"device": str(device), "precision": precision, "steps": STEPS}
    ours = {each: {"engine": "torch", "options": options, **where} for each, options in OPTIONS.items()}
    by_hand = {"engine": "hand", **where}
    compiled = {**by_hand, "options": {"compiled": True}}
    module = {"engine": "module", **where}
    contenders = {**ours, MODULE: module, HAND: by_hand, f"{HAND}{COMPILED}": compiled}
    return {each: contenders[each] for each in contenders if not (eager and each.endswith(COMPILED))}


def _take_turns(case: Subject, name: str, children: Mapping[str, Child], rounds: int, report: Report) -> None:
    times = alternate({each: turn_of(child) for each, child in children.items()}, rounds, LIMIT)
    report.add(list(_rows(report.table, name, times, case.passes(STEPS) * len(case.batches()))))
    for each, child in children.items():
        report.add(
            shares=[
                {"case": name, "contender": each, "memory": child.ask("memory"), "idle": child.ask("idle")}
            ]
        )
    print(f"{name}: measured {'; '.join(times) or 'nothing'}", flush=True)


def _rows(table: str, name: str, times: Mapping[str, list[float]], steps: int) -> Iterator[Row]:
    """Yield a row for each way in which multifit runs, with the times of the loops beside it."""
    ways = (*OPTIONS, MODULE)
    others = {each: values for each, values in times.items() if each not in ways}
    for each in ways:
        if each in times:
            case = f"{name}{each.removeprefix(OURS)}"
            yield Row.of_seconds(table, case, {OURS: times[each], **others}, steps)


def _train_rows(device: torch.device, options: argparse.Namespace, report: Report) -> int:
    """Train the rows of the table by pytest, as `make nightly` does, and add its report."""
    column, folder = ("cuda" if device.type == "cuda" else "torch"), Path(options.output) / "nightly"
    command = [sys.executable, "-m", "pytest", "nightly/test_quality.py", "-q", "--device", column]
    command += ["--report", str(folder), "--data", options.data]
    command += ["-k", options.rows] if options.rows else []
    # pytest-benchmark, which some images for GPUs have, warns beside pytest-xdist
    command += ["-n", str(options.jobs), "-p", "no:benchmark"] if options.jobs > 1 else []
    status = subprocess.run(command, cwd=ROOT).returncode
    path = folder / f"report-{column}.md"
    report.nightly = path.read_text("utf-8").replace("# ", "## ", 1) if path.exists() else ""
    report.write()
    return status


def _chosen(options: argparse.Namespace, parser: argparse.ArgumentParser) -> list[Subject]:
    """Return the chosen cases, by default all; exits with an error for an unknown part or case."""
    for part in set(options.parts) - set(PARTS):
        parser.error(f'there is no part "{part}"; parts are {quoted(PARTS)}')
    names = [name.lower() for name in options.cases]
    for name in names:
        if not any(str(case).lower().startswith(name) for case in CASES):
            parser.error(f'no case begins with "{name}"; cases are {quoted(map(str, CASES))}')
    return [case for case in CASES if not names or str(case).lower().startswith(tuple(names))]


def _device_facts(device: torch.device) -> dict[str, str]:
    facts = {"device": str(device), "torch": torch.__version__}
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        facts["device"] = f"{torch.cuda.get_device_name(device)}, compute capability {major}.{minor}"
        facts["CUDA"] = str(torch.version.cuda)
        allowed = {"products": torch.backends.cuda.matmul, "convolutions": torch.backends.cudnn}
        facts["TF32"] = ", ".join(name for name, each in allowed.items() if each.allow_tf32) or "nowhere"
    return facts


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measure multifit on a GPU, with PyTorch.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{' and '.join(PARTS)}; default: both")
    parser.add_argument("--device", default="cuda:0", help='a PyTorch device; "cpu" to try the command')
    parser.add_argument("--case", dest="cases", nargs="+", default=[], help="cases whose name begins so")
    parser.add_argument("--eager", action="store_true", help="leave out what torch.compile compiles")
    parser.add_argument("--epochs", type=int, help=f"rounds of each contender, by default {ROUNDS}")
    parser.add_argument("--rows", help="an expression of pytest's -k that selects rows of the table")
    parser.add_argument("--jobs", type=int, default=1, help="how many rows of the table train at a time")
    parser.add_argument("--data", default="datasets", help="folder with the real data sets: mnist, imdb, voc")
    parser.add_argument("--output", default="runs/gpu", help="the folder of the reports")
    return parser


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before MXNet reads it, in the processes that follow
    sys.exit(main())
