"""Rows of measured values, the targets of their medians, and the report, as JSON and as Markdown."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from multifit.utils.files import atomic_write

from ..report import provenance

__all__ = [
    "OURS", "PRECISIONS", "TARGETS", "Row", "Target", "machine", "markdown", "spread", "table_lines",
    "verdicts", "write",
]  # fmt: skip

OURS = "multifit"
HAND, FUSED = "/ hand-written", "/ fused by hand"
PRECISIONS = ("float32", "bfloat16")
SMALL = "ResNet18 thumbnail", "tiny FCN, mean IoU", "SSD", "NMT"
LARGE = "ResNet18, 224 pixels", "FCN, 512 pixels", "SSD, 256 pixels", "NMT, 1024 units"


class Spread(NamedTuple):
    """The median and quartiles of values."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g} … {self.high:.3g})"


@dataclass(frozen=True)
class Row:
    """One case of a table.

    Attributes
    ----------
    table, case : str
        Their names.
    unit : str
        The unit of the values, such as "ms per step".
    values : mapping of str to sequence of float
        By contender; values with the same index were measured right after each other.
    """

    table: str
    case: str
    unit: str
    values: Mapping[str, Sequence[float]]

    @classmethod
    def of_seconds(
        cls, table: str, case: str, times: Mapping[str, Sequence[float]], steps: int | None = None
    ) -> Row:
        """Return a row of milliseconds; per step if the number of steps is given."""
        unit = "ms" if steps is None else "ms per step"
        scale = 1000 / (steps or 1)
        return cls(
            table, case, unit, {name: [scale * time for time in seconds] for name, seconds in times.items()}
        )

    def ratios(self) -> dict[str, list[float]]:
        """Return multifit's values divided by each other contender's, pair by pair."""
        ours = self.values.get(OURS, ())
        return {
            f"/ {name}": [our / other for our, other in zip(ours, values)]
            for name, values in self.values.items()
            if not name.startswith(OURS) and ours
        }

    def figures(self) -> dict[str, Spread]:
        """Return the spread of every contender's values and of every ratio."""
        return {name: spread(values) for name, values in {**self.values, **self.ratios()}.items()}


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the quartiles of at least one value."""
    low, _, high = quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return Spread(median(values), low, high)


class Target(NamedTuple):
    """A limit that the median of a case's figure must not exceed."""

    table: str
    case: str
    figure: str
    limit: float


class Verdict(NamedTuple):
    """A target and the measured median."""

    target: Target
    measured: float

    @property
    def met(self) -> bool:
        """Whether the median is within the limit."""
        return self.measured <= self.target.limit


TARGETS = (
    # being general costs nothing
    Target("heads", "2 heads", FUSED, 1.05),
    Target("heads", "16 heads", FUSED, 1.05),
    Target("heads", "64 heads", FUSED, 1.05),
    # faster than the loop that people write by hand
    Target("heads", "2 heads", HAND, 0.80),
    Target("heads", "16 heads", HAND, 0.40),
    Target("heads", "64 heads", HAND, 0.50),
    Target("step_time", "MLP", HAND, 0.85),
    Target("step_time", "ResNet18 thumbnail", HAND, 1.03),
    Target("step_time", "SSD", HAND, 1.03),
    Target("step_time", "NMT", HAND, 1.03),
    # balancing costs no more than elsewhere: the gradients of parameters, and the weights for many tasks
    *(
        Target("balance", f"{case}, {method}", "/ TorchJD", 1.0)
        for cases, methods in (
            ([f"conv, {count} tasks" for count in (2, 5, 20)], ("UPGrad", "PCGrad", "CAGrad", "MGDA")),
            ([f"solver, {count} tasks" for count in (10, 20, 40)], ("UPGrad", "CAGrad", "MGDA")),
        )
        for case in cases
        for method in methods
    ),
    # two processes that train together reach .95 of the speed of two independent ones
    *(
        Target("distributed", f"ResNet18 thumbnail{samples}, {library}", "/ independent processes", 1.05)
        for samples in ("", ", 256 samples")
        for library in ("torch", "horovod")
    ),
    # faster than what people would use instead
    Target("others", "2 heads", "/ Lightning", 0.5),
    Target("others", "2 heads", "/ Keras, torch", 0.3),
    # on a GPU, faster than the loop in PyTorch thanks to CUDA graphs if nets are small, else as fast
    *(
        Target("gpu", f"{case}, {precision}", "/ PyTorch by hand", limit)
        for cases, limit in ((("2 heads", *SMALL), 0.7), (LARGE, 1.05))
        for case in cases
        for precision in PRECISIONS
    ),
    *(
        Target("gpu", f"{case}, {precision}{way}", f"/ PyTorch by hand{loop}", 1.05)
        for case in (*SMALL, *LARGE)
        for precision in PRECISIONS
        for way, loop in ((", operator by operator", ""), (", compiled", ", compiled"))
    ),
)


def verdicts(rows: Sequence[Row], targets: Sequence[Target] = TARGETS) -> list[Verdict]:
    """Return a verdict for each target whose case was measured."""
    measured = {
        (row.table, row.case, figure): spread.median
        for row in rows
        for figure, spread in row.figures().items()
    }
    return [Verdict(target, measured[target[:3]]) for target in targets if target[:3] in measured]


def write(folder: Path, time: str, machine: Mapping[str, str], rows: Sequence[Row]) -> Path:
    """Write ``<time>.json`` and ``<time>.md``; return the path of the latter."""
    results = {
        "time": time,
        "machine": dict(machine),
        "rows": [
            {**vars(row), "figures": {name: each._asdict() for name, each in row.figures().items()}}
            for row in rows
        ],
        "targets": [
            {**each.target._asdict(), "measured": each.measured, "met": each.met} for each in verdicts(rows)
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / f"{time}.json", json.dumps(results, indent=1) + "\n")
    path = folder / f"{time}.md"
    atomic_write(path, markdown(time, machine, rows))
    return path


def markdown(time: str, machine: Mapping[str, str], rows: Sequence[Row]) -> str:
    """Return the targets, then the tables: medians, and quartiles in brackets."""
    parts = [f"# Benchmarks, {time}", ", ".join(f"{name}: {value}" for name, value in machine.items())]
    judged = verdicts(rows)
    if judged:
        met = sum(each.met for each in judged)
        parts += ["## Targets", f"{met} of {len(judged)} are met.", _targets(judged)]
    for (table, unit), group in groupby(rows, key=lambda row: (row.table, row.unit)):
        parts += [f"## {table}, {unit}", _table(list(group))]
    return "\n\n".join(parts) + "\n"


def _targets(judged: Sequence[Verdict]) -> str:
    lines = [
        [*target[:3], f"{found:.3f}", f"{target.limit:g}", "met" if found <= target.limit else "**not met**"]
        for target, found in judged
    ]
    return table_lines(["table", "case", "figure", "measured", "at most", ""], lines)


def _table(rows: Sequence[Row]) -> str:
    """Return one table; the cell of a contender that a case does not have is empty."""
    figures = [row.figures() for row in rows]
    names = list(dict.fromkeys(name for row_figures in figures for name in row_figures))
    names.sort(key=lambda name: name.startswith("/ "))  # ratios after the values
    cells = [
        [row.case, *(str(row_figures.get(name, "")) for name in names)]
        for row, row_figures in zip(rows, figures)
    ]
    return table_lines(["", *names], cells)


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, whose columns after the first are numbers."""
    lines = [header, ["---"] + ["--:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def machine() -> dict[str, str]:
    """Return processor, cores, memory, load average, threads, versions and commit."""
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return {
        "processor": _line("/proc/cpuinfo", "model name") or platform.processor() or "unknown",
        "cores": str(os.cpu_count()),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
        "load average": load,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "not set"),
        **provenance(),
    }


def _line(path: str, name: str) -> str:
    """Return the value of a name in a file of /proc; empty if there is no such file."""
    file = Path(path)
    lines = file.read_text().splitlines() if file.exists() else []
    values = (line.split(":", 1)[1].strip() for line in lines if line.startswith(name))
    return next(values, "")
