"""Start a Python program as several processes of one run, on this machine."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
GRACE = 10  # seconds that the other processes have once one has failed
KINDS = [
    pytest.param(kind, marks=pytest.mark.skipif(find_spec(kind) is None, reason=f"needs {kind}"))
    for kind in ("torch", "horovod")
]


class Job(NamedTuple):
    """A run that is over: its exit code, when it ended, and what each rank printed."""

    code: int
    ended: float
    outputs: list[str]


def launch(kind: str, size: int, *command: str, limit: float = 120, **variables: str) -> Job:
    """Run ``python *command`` in `size` processes, as ``torchrun`` or ``horovodrun`` would start them.

    Torch's are started one by one, which is quicker than ``torchrun``. Those that are still there after
    `limit` seconds, or some seconds after one has failed, are killed, and the exit code is -9.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    python = [sys.executable, "-u", *command]
    if kind == "torch":
        meeting = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]
        commands = [(python, {**meeting, **rank, **environment}) for rank in ranks]
    else:
        runner = [str(Path(sys.executable).with_name("horovodrun")), "--gloo", "-np", str(size)]
        path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
        commands = [([*runner, *python], {**environment, "PATH": path})]
    with started(commands) as processes:
        deadline = time.monotonic() + limit
        outputs = []
        for process in processes:
            outputs.append(output(process, deadline))
            if process.returncode != 0:  # a launcher would end the others soon
                deadline = min(deadline, time.monotonic() + GRACE)
        ended = time.time()
        codes = [process.returncode for process in processes]
    if kind == "horovod":
        lines = re.findall(r"^\[(\d+)\]<\w+>:(.*)$", outputs[0], re.MULTILINE)
        outputs = ["\n".join(line for number, line in lines if int(number) == rank) for rank in range(size)]
    return Job(max(codes, key=abs), ended, outputs)


@contextmanager
def started(commands: list[tuple[list[str], dict[str, str]]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Start processes, each in a group of its own that is killed at the end of the block."""
    processes = [
        subprocess.Popen(
            command,
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for command, environment in commands
    ]
    try:
        yield processes
    finally:
        for process in processes:
            kill(process)


def output(process: subprocess.Popen[str], deadline: float) -> str:
    """Return what a process prints until it ends, or is killed because it takes too long."""
    try:
        return process.communicate(timeout=max(0.1, deadline - time.monotonic()))[0]
    except subprocess.TimeoutExpired:
        kill(process)
        return process.communicate()[0]


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a process and those that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> str:
    """Return a port that nothing uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def time_of(word: str, output: str) -> float:
    """Return the time that stands after a word."""
    match = re.search(rf"\b{word} ([0-9.]+)", output)
    assert match, output
    return float(match[1])
