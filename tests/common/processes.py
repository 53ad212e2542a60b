"""The command in processes of its own, which get signals."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def not_ignoring(*numbers: int) -> Iterator[None]:
    """Let child processes receive signals that this process ignores, as a job in the background does."""
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler)


@contextmanager
def processes(folder: Path) -> Iterator[Callable[..., Any]]:
    """Yield a function that starts the command in another process, in a folder; they end with the block."""
    started: list[Any] = []

    def start(*arguments: Any, shell: str = 'exec "$@"', **variables: str) -> Any:
        python = [sys.executable, "-u", "-m", "multifit", *map(str, arguments)]
        command = ["sh", "-c", shell, "sh", *python]
        root = str(Path(__file__).parents[2])
        environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", **variables}
        with not_ignoring(signal.SIGINT, signal.SIGHUP):
            one = subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,  # so that a test can signal it and its children, as a terminal does
            )
        started.append(one)
        return one

    try:
        yield start
    finally:
        for one in started:
            one.kill()
            one.wait()
            one.stdin.close()
            one.stdout.close()


def wait_for(process: Any, text: str) -> None:
    """Read a process's output until a line contains `text`; fail where it ends first or takes too long."""
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            if text in line:
                return
    finally:
        watchdog.cancel()
    raise AssertionError("".join(lines[-50:]))
