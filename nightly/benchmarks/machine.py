"""The machine, its load and the versions that figures were measured with."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from ..report import provenance

__all__ = ["machine"]


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
