"""The report of ``python -m nightly.gpu``, as JSON and as Markdown."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from multifit.utils.files import atomic_write

from .benchmarks.results import Row, markdown, table_lines

__all__ = ["Report"]

OF_DEVICE = {
    "memory": ("Peak memory, MiB", 1),
    "idle": ("Share of the time in which the GPU is idle, %", 100),
}


class Report:
    """What was measured so far, written with each addition.

    `table` names the targets with which the rows are compared: those of the GPU, or none on a CPU.
    """

    def __init__(self, folder: Path, facts: Mapping[str, str], table: str = "gpu") -> None:
        self.table = table
        self._time, self._folder = time.strftime("%Y-%m-%dT%H-%M-%S"), folder
        self._facts, self._rows, self._shares = dict(facts), [], []
        self._missing: dict[str, str] = {}
        self.nightly = ""

    @property
    def path(self) -> Path:
        """The report for reading."""
        return self._folder / f"{self._time}.md"

    def add(
        self,
        rows: Sequence[Row] = (),
        shares: Sequence[Mapping[str, Any]] = (),
        missing: Mapping[str, str] | None = None,
    ) -> None:
        """Add what was measured of a case: steps, memory and idle time, and why others are missing."""
        self._rows += rows
        self._shares += shares
        self._missing.update(missing or {})
        self.write()

    def write(self) -> None:
        """Write everything as JSON and as Markdown."""
        content = {
            "time": self._time,
            "machine": self._facts,
            "rows": [vars(row) for row in self._rows],
            "device": self._shares,
            "missing": self._missing,
            "nightly": self.nightly,
        }
        atomic_write(self.path.with_suffix(".json"), json.dumps(content, indent=1) + "\n")
        atomic_write(self.path, self._text())

    def _text(self) -> str:
        title = f"# PyTorch on {self._facts['device']}"
        parts = [markdown(self._time, self._facts, self._rows).replace("# Benchmarks", title, 1).rstrip()]
        for kind, (heading, factor) in OF_DEVICE.items():
            found = {
                (each["case"], each["contender"]): each[kind]
                for each in self._shares
                if each[kind] is not None
            }
            if found:
                parts += [f"## {heading}", _by_contender(found, factor)]
        if self._missing:
            parts += ["## Not measured", "\n".join(f"* {name}: {why}" for name, why in self._missing.items())]
        return "\n\n".join([*parts, *filter(None, [self.nightly])]) + "\n"


def _by_contender(found: Mapping[tuple[str, str], float], factor: float) -> str:
    """Return a table with a line for each case and a column for each contender."""
    cases, contenders = (list(dict.fromkeys(names)) for names in zip(*found))
    cells = [
        [f"{factor * found[case, each]:.3g}" if (case, each) in found else "" for each in contenders]
        for case in cases
    ]
    return table_lines(["", *contenders], [[case, *row] for case, row in zip(cases, cells)])
