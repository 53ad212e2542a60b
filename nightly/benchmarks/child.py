"""A contender in a process of its own, which runs an epoch on request.

Contenders whose environments do not fit into one process can take turns this way. Both sides send single
lines. The child sends ``ready``. Then it answers each line with JSON: the seconds that an epoch took by its
own clock and the epoch's figures, or something else that it measures. It exits at the end of its input.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Child"]

TOP = Path(__file__).parents[2]


class Child:
    """Starts a process and waits until it is ready; as a context manager it ends the process.

    Parameters
    ----------
    command : sequence of str
        The command, which is run at the top of the repository.
    environment : mapping of str to str, optional
        Variables in addition to those of this process.

    Raises
    ------
    RuntimeError
        The process ended; the message has the last lines of its stderr.
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
        """Send a line, and return the child's answer."""
        try:
            self._process.stdin.write(what + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the child ended; _read raises with its error
        return self._read()

    def close(self) -> None:
        """Close the child's input and wait for it to exit; kill it after 20 seconds."""
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
            if line.startswith("> "):  # other lines are printed by libraries
                return json.loads(line[2:])
        self._process.wait()
        self._errors.seek(0)
        last = "".join(self._errors.readlines()[-15:]) or "(no output)"
        raise RuntimeError(f"{' '.join(self._command)} ended with code {self._process.returncode}:\n{last}")
