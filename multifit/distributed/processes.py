"""Where a rank's process runs, and whether it still does."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass

import psutil

DEAD = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


@dataclass(frozen=True)
class Process:
    """A process: its host's name, its number, and the number's name space (each container has its own)."""

    host: str
    pid: int
    space: str

    def __str__(self) -> str:
        return f"{self.host}, process {self.pid}"


def this_process() -> Process:
    """Return where this process is."""
    space = ""
    with suppress(OSError):  # not Linux
        space = os.readlink("/proc/self/ns/pid")
    return Process(socket.gethostname(), os.getpid(), space)


def fate(process: Process) -> str | None:
    """Return ``has ended`` or ``is stopped``; None if it runs, or if that cannot be seen from here."""
    here = this_process()
    if (process.host, process.space) != (here.host, here.space):
        return None
    try:
        status = psutil.Process(process.pid).status()
    except psutil.NoSuchProcess:
        return "has ended"
    if status in DEAD:
        return "has ended"
    return "is stopped" if status == psutil.STATUS_STOPPED else None
