"""Output that never stops a run: what cannot be shown is lost, and the program goes on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .errors import reason


class Output:
    """A text stream that never raises.

    Characters that its encoding lacks are replaced. Once it fails (the reader of a pipe has ended, the disk
    is full, the stream is closed), it is silent, and `error` says why. A stream that was closed before Python
    started is None; it is silent too. All other attributes are the stream's.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.error: Exception | None = None

    def write(self, text: str) -> int:
        """Write what can be written."""
        try:
            self._call("write", text)
        except UnicodeEncodeError:
            encoding = self._stream.encoding
            self._call("write", text.encode(encoding, "replace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        """Flush what was written."""
        self._call("flush")

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return bool(self._call("isatty"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__.get("_stream"), name)

    def _call(self, method: str, *arguments: str) -> Any:
        if self._stream is None or self.error is not None:
            return None
        try:
            return getattr(self._stream, method)(*arguments)
        except UnicodeEncodeError:
            raise
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            self.error = error
            return None


@contextmanager
def safe_output() -> Iterator[None]:
    """Let nothing that is printed in the block raise, then report on stderr if the output was lost.

    For a whole process. Standard descriptors that were closed before it started are opened on the null
    device. Otherwise, the next file that is opened would get the number of one of them, and what libraries
    print would be written into it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    streams = sys.stdout, sys.stderr
    out, err = sys.stdout, sys.stderr = Output(sys.stdout), Output(sys.stderr)
    try:
        yield
    finally:
        for stream in (out, err):
            stream.flush()
        lost = write_error(out)
        if lost is not None:
            err.write(f"multifit: the output could not be written: {lost}\n")
            err.flush()
        sys.stdout, sys.stderr = streams
        for stream in (out, err):
            if stream.error is not None:
                _abandon(stream)


def in_notebook() -> bool:
    """Return whether this process is a notebook's kernel: what it prints is shown, though in no terminal."""
    ipython = sys.modules.get("IPython")  # a notebook has imported it
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def write_error(stream: object) -> str | None:
    """Return why a stream could not be written to; None for a pipe whose reader has read enough."""
    error = getattr(stream, "error", None)
    if error is None or isinstance(error, BrokenPipeError):
        return None
    return reason(error)


def _abandon(stream: Output) -> None:
    """Discard what is left in a stream's buffer: Python would fail to flush it when it ends."""
    with suppress(AttributeError, OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
