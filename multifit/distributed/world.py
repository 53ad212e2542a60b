"""The ranks of a run: they meet, so that each knows of the others' failures, and exchange values.

A collective operation hangs if one rank never calls it. So ranks meet before: each says where in the run it
is, or that it failed, and all of them learn it at once.
"""

from __future__ import annotations

import io
import json
import math
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Callable

import numpy as np

from ..errors import PeerError, last_line
from .call_thread import CallThread, Late
from .communicator import Communicator
from .end_process import end_without_waiting
from .meeting import FACTS, Vector, moments_of, pack_header, pad, unpack_headers
from .processes import Process, fate, this_process

LINES = 12  # of a traceback that is sent to the other ranks


class World:
    """The ranks of a run, for one of them; `ALONE` where there is one only.

    All ranks call the same methods in the same order. Each method but `all_reduce` and `broadcast` is a
    meeting. Alone, they return what is given, and cost nothing.

    Parameters
    ----------
    communicator : Communicator
        What connects the ranks.
    timeout : float
        Seconds to wait for other ranks.
    """

    def __init__(self, communicator: Communicator, timeout: float = 60.0) -> None:
        self.communicator = communicator
        self.rank, self.size, self.timeout = communicator.rank, communicator.size, timeout
        self.first = self.rank == 0
        self.alone = self.size == 1
        self._processes: list[Process] = []
        self._call = CallThread()
        self._error: str | None = None  # why the ranks are no longer together
        self._closed = False

    def introduce(self, **facts: Any) -> None:
        """Tell the others where this process is, so that errors name it, and compare facts: see `agree`."""
        if not self.alone:
            processes = self.gather_json(vars(this_process()), "the start")
            self._processes = [Process(**process) for process in processes]
            for what, value in facts.items():
                self.agree(what, value)

    def meet(self, moment: str, *facts: float) -> Vector:
        """Wait until all ranks are here, and exchange numbers.

        Parameters
        ----------
        moment : str
            Where in the run this rank is, at most 64 bytes; the others must be there too.
        *facts : float
            At most 8 numbers for the others.

        Returns
        -------
        array
            The facts of all ranks in their order, float64 of shape (size, len(facts)).

        Raises
        ------
        PeerError
            Another rank failed, ended, is elsewhere in the run, or is not here in time; and from then on.
        """
        if self.alone:
            return np.array([facts], np.float64)
        headers, _ = self._exchange(moment, facts)
        numbers: Vector = headers["facts"][:, : len(facts)]
        return numbers

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Tell the other ranks of an exception in the block before it leaves it.

        They raise PeerError at their next meeting. Within another guarded block it is told once.
        """
        try:
            yield
        except BaseException as error:
            if not self.alone and self._error is None:
                self._tell(error)
            raise

    def sum(self, vector: Any) -> Vector:
        """Return the sum over all ranks, float64, of the same shape; the same bits on each rank.

        The vectors are added in the order of ranks.
        """
        own = np.asarray(vector, np.float64)
        if self.alone:
            return own
        if own.size <= FACTS:
            rows = self.meet("a sum", *own.ravel().tolist())
        else:
            rows = np.stack([np.frombuffer(row, np.float64) for row in self._gather("a sum", own.tobytes())])
        total = np.zeros(own.size)
        for row in rows:
            total += row
        return total.reshape(own.shape)

    def gather_json(self, value: Any, moment: str = "an exchange of values") -> list[Any]:
        """Return the JSON values of all ranks, in their order."""
        if self.alone:
            return [value]
        return [json.loads(content) for content in self._gather(moment, json.dumps(value).encode())]

    def gather_arrays(
        self, arrays: Sequence[Vector], moment: str = "an exchange of arrays"
    ) -> list[list[Vector]]:
        """Return the arrays of all ranks, in their order; numbers, shapes and dtypes may differ.

        Raises ValueError for arrays of objects.
        """
        if self.alone:
            return [list(arrays)]
        file = io.BytesIO()
        for array in arrays:
            np.save(file, array, allow_pickle=False)
        return [_load_arrays(content) for content in self._gather(moment, file.getvalue())]

    def agree(self, what: str, value: Any) -> None:
        """Raise PeerError, naming the difference, unless the JSON value is the same on all ranks."""
        values = self.gather_json(value, what)
        for rank, other in enumerate(values):
            if other != values[0] and not self.alone:
                self._fail(
                    f"{what} must be the same on all ranks, but on {self._name(0)}: "
                    f"{json.dumps(values[0])}, on {self._name(rank)}: {json.dumps(other)}",
                    rank,
                )

    def all_reduce(self, arrays: Sequence[Any]) -> None:
        """Replace each array by its sum over all ranks, which must have met just before.

        The arrays are what the communicator takes: see `Communicator.asynchronous`.
        """
        self._collective("a sum of arrays", self.communicator.all_reduce, arrays)

    def broadcast(self, arrays: Sequence[Any]) -> None:
        """Replace each array by rank 0's; all ranks must have met just before."""
        self._collective("a broadcast of arrays", self.communicator.broadcast, arrays)

    def close(self) -> None:
        """Leave the other ranks. What hangs because they hang is left to end with the process."""
        if self.alone or self._closed:
            return
        self._closed = True
        self._error = self._error or "the connection to the other ranks is closed"
        if not self._call.stuck:
            with suppress(Exception):
                self._call(self.timeout, self.communicator.close)
        if self._call.stuck:
            end_without_waiting()

    def _collective(
        self, moment: str, function: Callable[[Sequence[Any]], None], arrays: Sequence[Any]
    ) -> None:
        if self.alone or not arrays:
            return
        if self.communicator.asynchronous:
            function(arrays)
        else:
            self._run(moment, function, arrays)

    def _gather(self, moment: str, content: bytes) -> list[bytes]:
        return self._exchange(moment, content=content)[1]

    def _exchange(
        self, moment: str, facts: Sequence[float] = (), content: bytes = b"", failed: bool = False
    ) -> tuple[Vector, list[bytes]]:
        """Return the headers of all ranks, and the bytes that each sent; raise PeerError as `meet` does."""
        header = pack_header(moment, facts, len(content), failed)
        headers = unpack_headers(self._run(moment, self.communicator.all_gather, header))
        longest = int(headers["length"].max())
        contents = [b""] * self.size
        if longest:  # also if ranks failed or went apart: all of them know it
            vectors = self._run(moment, self.communicator.all_gather, pad(content, longest))
            contents = [row[:length].tobytes() for row, length in zip(vectors, headers["length"])]
        if not failed:
            self._check(headers, contents)
        return headers, contents

    def _check(self, headers: Vector, contents: list[bytes]) -> None:
        failed = np.flatnonzero(headers["failed"]).tolist()
        if failed:
            texts = {rank: contents[rank].decode("utf-8", "replace") for rank in failed}
            lines = [f"{self._name(rank)} failed: {text}" for rank, text in texts.items()]
            self._fail("\n".join(lines), *failed)
        moments = moments_of(headers)
        if len(set(moments)) > 1:
            places = "; ".join(f'{self._name(i)} is at "{moment}"' for i, moment in enumerate(moments))
            self._fail(f"the ranks went apart: {places}. Do all of them run the same code on the same data?")

    def _run(self, moment: str, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._error is not None:
            raise PeerError(self._error)
        try:
            return self._call(self.timeout, function, *arguments)
        except Late:
            end_without_waiting()
            self._lose(f"waited {self.timeout:g} s for the others", moment)
        except Exception as error:
            self._lose("lost the others", moment, error)

    def _lose(self, what: str, moment: str, error: Exception | None = None) -> None:
        """Raise PeerError for a collective that failed, naming the ranks that ended or are stopped."""
        fates = {rank: fate(process) for rank, process in enumerate(self._processes)}
        known = {rank: text for rank, text in fates.items() if text is not None}
        names = "; ".join(f"{self._name(rank)} {text}" for rank, text in known.items())
        if not names:
            names = "which of them failed or hangs cannot be seen from here"
        library = "" if error is None else f" ({self.communicator.name}: {last_line(error)})"
        self._fail(f'rank {self.rank} {what} at "{moment}": {names}{library}', *known, cause=error)

    def _fail(self, message: str, *ranks: int, cause: Exception | None = None) -> None:
        self._error = message
        raise PeerError(message, ranks) from cause

    def _tell(self, error: BaseException) -> None:
        text = f"{type(error).__name__}: {last_line(error)} (on {this_process()})"
        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__)).splitlines()
        content = "\n".join([text, *lines[-LINES:]]).encode("utf-8", "replace")
        with suppress(Exception):  # the others may be gone; the error that leaves is the one that counts
            self._exchange("a failure", content=content, failed=True)
        self._error = f"rank {self.rank} has failed: {text}"

    def _name(self, rank: int) -> str:
        return f"rank {rank} ({self._processes[rank]})" if self._processes else f"rank {rank}"


class _Alone:
    """The communicator of a single process."""

    name, rank, size, asynchronous = "alone", 0, 1, False

    def all_reduce(self, arrays: Sequence[Any]) -> None:
        """Leave the arrays as they are."""

    def broadcast(self, arrays: Sequence[Any]) -> None:
        """Leave the arrays as they are."""

    def all_gather(self, vector: Vector) -> list[Vector]:
        """Return the vector."""
        return [vector]

    def close(self) -> None:
        """Do nothing."""


ALONE = World(_Alone(), math.inf)


def _load_arrays(content: bytes) -> list[Vector]:
    file, arrays = io.BytesIO(content), []
    while file.tell() < len(content):
        arrays.append(np.load(file, allow_pickle=False))
    return arrays
