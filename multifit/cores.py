"""What a process has of the machine: the cores that it may use, and how many of them others keep busy."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Callable

__all__ = ["Neighbours", "allowed_cpus", "physical_cores", "quota"]


def allowed_cpus() -> set[int]:
    """Return the CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))  # macOS and Windows


def quota(root: Path = Path("/")) -> float:
    """Return how many cores' time the control groups grant this process; infinity where they do not limit it.

    Parameters
    ----------
    root : Path
        Where ``proc`` and ``sys`` are.
    """
    found = [math.inf]
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        inner = Path(path.lstrip("/"))
        for folder in (inner, *inner.parents):  # within a container only the mount itself is there
            found.append(_limit(mount / folder))
    return min(found)


def _limit(folder: Path) -> float:
    both = _read(folder / "cpu.max").split()  # version 2, else version 1
    both = both or [_read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if len(both) == 2 and both[0].isdigit() and both[1].isdigit():  # else "max", "-1" or no such file
        return int(both[0]) / int(both[1])
    return math.inf


def physical_cores(cpus: set[int], root: Path = Path("/")) -> int:
    """Return how many cores there are behind CPUs of which several may be one core's hyperthreads."""
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return len({_read(root / topology.format(cpu)).strip() or str(cpu) for cpu in cpus})


class Neighbours:
    """How many cores other processes keep busy, between one look and the next.

    Parameters
    ----------
    cpus : set of int
        Those to look at.
    root : Path
        Where ``proc`` is.
    clock, own : callable
        The time, and the processor time of this process, in seconds.
    """

    def __init__(
        self,
        cpus: set[int],
        root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
        own: Callable[[], float] = time.process_time,
    ) -> None:
        self._cpus, self._stat, self._clock, self._own = cpus, root / "proc/stat", clock, own
        self._before = self._look()

    def busy(self) -> float:
        """Return how many cores they kept busy since the last look; 0 where nobody can tell."""
        before, self._before = self._before, self._look()
        seconds, theirs = (now - then for now, then in zip(self._before, before))
        return max(0.0, theirs / seconds) if seconds > 0 else 0.0

    def _look(self) -> tuple[float, float]:
        ticks = 0
        for line in _read(self._stat).splitlines():
            name, *numbers = line.split()
            if name[:3] == "cpu" and name[3:].isdigit() and int(name[3:]) in self._cpus:
                user, nice, system, _, _, *more = map(int, numbers)  # idle and waiting for a disk
                ticks += user + nice + system + sum(more[:3])  # interrupts, and what other guests took
        return self._clock(), (ticks / os.sysconf("SC_CLK_TCK") if ticks else 0.0) - self._own() * bool(ticks)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError:
        return ""
