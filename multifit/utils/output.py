"""Output that never stops a run: what cannot be shown is lost, and the program goes on."""

from typing import Any

from .text import reason


class Output:
    """A text stream that never raises when it is written to; its other attributes are the stream's.

    Once it fails (the terminal is closed, the reader of a pipe has ended, the disk is full), it is silent,
    and `error` says why. A stream that was closed before Python started is None; it is silent too.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.error: Exception | None = None

    def write(self, text: str) -> int:
        """Write what can be written; characters that the stream's encoding lacks are replaced."""
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._try("write", text.encode(encoding, "replace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        """Flush what was written."""
        self._try("flush")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__.get("_stream"), name)

    def _try(self, method: str, *arguments: str) -> None:
        if self._stream is not None and self.error is None:
            try:
                getattr(self._stream, method)(*arguments)
            except (OSError, ValueError) as error:  # ValueError: the stream is closed
                self.error = error


def write_error(stream: object) -> str | None:
    """Return why a stream could not be written to; None for a pipe whose reader has read enough."""
    error = getattr(stream, "error", None)
    return None if error is None or isinstance(error, BrokenPipeError) else reason(error)
