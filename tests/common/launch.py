"""Start a Python program as several processes of one run, as a launcher would."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextmanager
def torch_processes(size: int, *command: str, **variables: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Start ``python *command`` in processes that find each other as ``torchrun``'s do.

    Their output is one text for each, of both streams. They are killed at the end of the block.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    meeting = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **meeting, **variables}
    processes = [
        subprocess.Popen(
            [sys.executable, "-u", *command],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def run_torch_processes(size: int, *command: str, timeout: float = 120, **variables: str) -> list[str]:
    """Return what each process printed; raise AssertionError with it if one fails."""
    with torch_processes(size, *command, **variables) as processes:
        texts = [process.communicate(timeout=timeout)[0] for process in processes]
        codes = [process.returncode for process in processes]
    assert not any(codes), f"{codes}\n" + "\n".join(texts)
    return texts
