"""Ranks meet: each says where in the run it is, or that it failed, and all of them learn it at once."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Callable, NamedTuple, NoReturn

from ..errors import PeerError, last_line, notes
from .call_thread import CallThread, Late, result
from .communicator import Communicator, Notes
from .end_process import end_without_waiting
from .header import Header, pack_header, pad, unpack_header
from .processes import Process, fate

LINES = 12  # of a traceback that is sent to the other ranks
SHOWN = 150  # characters of a library's error
ENDING = 0.2  # seconds that a process may take to end
PATIENCE = 1.0  # seconds after which a rank that waits leaves a note, for others to see that it is there
READING = 3.0  # seconds that reading the notes may take


class Operation(NamedTuple):
    """A collective operation that was begun, and its number."""

    future: Future[Any]
    number: int


class Meetings:
    """The exchanges of one rank with the others, and what it knows of them.

    A collective operation that some rank never calls would hang, so each rank waits only for a limited time.
    Once a rank has been lost, every exchange raises the same error.
    """

    def __init__(self, communicator: Communicator, timeout: float) -> None:
        self.communicator, self.timeout = communicator, timeout
        self.processes: list[Process] = []  # of all ranks, once they are known
        self.error: str | None = None  # why the ranks are no longer together
        self.stuck = False  # whether an operation still waits in its thread
        self._thread = CallThread()
        self._operations = 0

    def exchange(
        self, moment: str, facts: Sequence[float] = (), content: bytes = b"", failed: bool = False
    ) -> tuple[list[Header], list[bytes]]:
        """Return the headers of all ranks, and the bytes that each sent.

        Raises PeerError if a rank failed, is at another moment, is gone or is late. If this rank itself has
        `failed`, raises it only if the others cannot be told.
        """
        header = pack_header(moment, facts, len(content), failed)
        headers = [*map(unpack_header, self.run(moment, self.communicator.all_gather, header))]
        longest = max(header.length for header in headers)
        contents = [b""] * self.communicator.size
        if longest:  # also if ranks failed or went apart: all of them know the lengths
            vectors = self.run(moment, self.communicator.all_gather, pad(content, longest))
            contents = [row[: header.length].tobytes() for row, header in zip(vectors, headers)]
        if not failed:
            self._check(headers, contents)
        return headers, contents

    def run(self, moment: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a collective operation returns; raise PeerError if it fails or takes too long."""
        return self.finish(moment, self.begin(function, *arguments))

    def begin(self, function: Callable[..., Any], *arguments: Any) -> Operation:
        """Begin a collective operation after those begun before; raises PeerError if the ranks are lost."""
        if self.error is not None:
            raise PeerError(self.error)
        self._operations += 1
        return Operation(self._thread.begin(function, *arguments), self._operations)

    def finish(self, moment: str, operation: Operation) -> Any:
        """Return what an operation returns; raise PeerError if it fails, or takes too long from now on."""
        try:
            with suppress(Late):
                return result(operation.future, min(PATIENCE, self.timeout / 2))
            self._leave_note(operation.number)
            return result(operation.future, self.timeout - min(PATIENCE, self.timeout / 2))
        except Late:
            self.stuck = True
            end_without_waiting()
            missing = self._missing(operation.number)
            self._lose(f"waited {self.timeout:g} s for the others", moment, missing)
        except Exception as error:
            self._lose("lost the others", moment, {}, error)

    def tell(self, error: BaseException) -> None:
        """Let the other ranks know of an exception that ends this one.

        Raises PeerError if they are lost and the communicator is asynchronous: MXNet then raises an exception
        of its own wherever it waits for a sum that failed, and PeerError says more.
        """
        if self.error is not None:
            return
        text = describe(error)
        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__)).splitlines()
        content = "\n".join([text, *lines[-LINES:]]).encode("utf-8", "replace")
        try:
            if self.communicator.asynchronous and (known := self._fates()):
                self._lose("lost the others", "a failure", known)  # or this would wait for a stopped process
            self.exchange("a failure", content=content, failed=True)
        except PeerError:
            if self.communicator.asynchronous and isinstance(error, Exception):
                raise
        self.error = f"{self.name(self.communicator.rank)} has failed: {text}"

    def fail(self, message: str, ranks: Sequence[int] = (), cause: Exception | None = None) -> NoReturn:
        """Raise PeerError, now and whenever ranks are to meet."""
        self.error = message
        raise PeerError(message, tuple(ranks)) from cause

    def close(self) -> None:
        """Leave the other ranks."""
        self.error = self.error or "the connection to the other ranks is closed"
        if not self.stuck:
            try:
                self._thread.call(self.timeout, self.communicator.close)
            except Late:
                end_without_waiting()
            except Exception:  # the others are gone
                pass

    def name(self, rank: int) -> str:
        """Return ``rank 1 (host, process 123)``."""
        return f"rank {rank} ({self.processes[rank]})" if self.processes else f"rank {rank}"

    def _check(self, headers: list[Header], contents: list[bytes]) -> None:
        failed = [rank for rank, header in enumerate(headers) if header.failed]
        if failed:
            texts = {rank: contents[rank].decode("utf-8", "replace") for rank in failed}
            self.fail("\n".join(f"{self.name(rank)} failed: {text}" for rank, text in texts.items()), failed)
        moments = [header.moment for header in headers]
        if len(set(moments)) > 1:
            places = "; ".join(f'{self.name(rank)} is at "{moment}"' for rank, moment in enumerate(moments))
            self.fail(
                f"the ranks are out of step: {places}. Do all of them run the same code on the same data?"
            )

    def _lose(
        self, what: str, moment: str, known: dict[int, str], error: Exception | None = None
    ) -> NoReturn:
        """Raise PeerError for an operation that failed, naming the ranks that are known to be the cause."""
        known.update(self._fates())
        if self.processes and not known:  # a killed process closes its connections before it has ended
            time.sleep(ENDING)
            known.update(self._fates())
        causes = "; ".join(f"{self.name(rank)} {text}" for rank, text in sorted(known.items()))
        library = "" if error is None else f" ({self.communicator.name}: {last_line(error)[:SHOWN]})"
        self.fail(
            f'rank {self.communicator.rank} {what} at "{moment}": '
            f"{causes or 'this rank cannot tell which one it is'}{library}",
            sorted(known),
            error,
        )

    def _fates(self) -> dict[int, str]:
        fates = {rank: fate(process) for rank, process in enumerate(self.processes)}
        return {rank: text for rank, text in fates.items() if text is not None}

    def _leave_note(self, operation: int) -> None:
        if isinstance(self.communicator, Notes):
            with suppress(Exception):
                CallThread().call(READING, self.communicator.leave_note, str(operation))

    def _missing(self, operation: int) -> dict[int, str]:
        """Return the ranks that do not wait for this operation, each with the reason."""
        here = {self.communicator.rank}
        others = set(range(self.communicator.size)) - here
        if len(others) > 1:
            if not isinstance(self.communicator, Notes):
                return {}
            try:
                notes = CallThread().call(READING, self.communicator.read_notes, str(operation))
            except Exception:
                return {}
            if not here.issubset(notes):  # this rank's own was not kept, so others' may not be either
                return {}
            others -= set(notes)
        return dict.fromkeys(others, "has not arrived")


def describe(error: BaseException) -> str:
    """Return the exception's name, the last line of its message, and its notes."""
    kind = type(error).__name__
    text = f"{kind}: {last_line(error)}" if str(error).strip() else kind
    return "; ".join([text, *notes(error)])
