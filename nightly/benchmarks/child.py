"""A contender in a process of its own, which runs an epoch whenever it is told to.

The protocol is one line each way: the child says ``ready``, then answers every line that it is sent with
the seconds that its epoch took, by its own clock, and the epoch's figures, or with whatever else it measures,
as JSON. It ends when its input does. Only so can environments take turns that do not fit into one process.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Mapping, Sequence

__all__ = ["Child"]

TOP = Path(__file__).parents[2]


class Child:
    """Starts a process and waits until it is ready; a context manager that ends it.

    Parameters
    ----------
    command : sequence of str
        What is run, from the top of the repository.
    environment : mapping of str to str, optional
        Variables beside those that are set here.

    Raises
    ------
    RuntimeError
        The process ended, on starting or when it was asked: with the last lines that it wrote on stderr.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._command = list(command)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the child
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=TOP,
            env={**os.environ, **(environment or {})},
        )
        try:
            self.greeting = self._read()
        except BaseException:
            self.close()
            raise

    def ask(self, what: str = "epoch") -> Any:
        """Send a line, and return what the child answers."""
        try:
            self._process.stdin.write(what + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it is gone: reading tells why
        return self._read()

    def close(self) -> None:
        """End the child: its input ends, and it may take some seconds for that."""
        try:
            self._process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        finally:
            self._errors.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> Any:
        for line in self._process.stdout:
            if line.startswith("> "):  # libraries print what they like
                return json.loads(line[2:])
        self._process.wait()
        self._errors.seek(0)
        last = "".join(self._errors.readlines()[-15:]) or "(it said nothing)"
        raise RuntimeError(f"{' '.join(self._command)} ended with code {self._process.returncode}:\n{last}")
