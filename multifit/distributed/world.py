"""The ranks of a run: they meet, so that each knows of the others' failures, and exchange values."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..arguments import checked
from .communicator import CALLED_BY_SEVERAL, AnyCommunicator, Seconds
from .header import FACTS, Vector
from .meetings import Meetings
from .processes import Process, this_process


class World:
    """The ranks of a run, as one of them sees them; `ALONE` if there is only one.

    All ranks call the same methods in the same order. `meet`, `sum`, `agree`, `introduce` and the methods
    that gather are meetings, and raise PeerError as `meet` does. With one rank, they return what they are
    given, at no cost.

    Parameters
    ----------
    communicator : Communicator
        What connects the ranks.
    timeout : float
        Seconds to wait for other ranks.

    Raises
    ------
    ValueError
        An argument is not valid.

    Attributes
    ----------
    rank, size : int
        Number of this process, from 0, and the number of processes.
    first, alone : bool
        Whether this is rank 0; whether it is the only one.
    """

    @checked
    def __init__(self, communicator: AnyCommunicator, timeout: Seconds = 60.0) -> None:
        self.communicator = communicator
        self.rank, self.size, self.timeout = communicator.rank, communicator.size, timeout
        self.first = self.rank == 0
        self.alone = self.size == 1
        self._meetings = Meetings(communicator, timeout)
        self._closed = False

    def introduce(self, **facts: Any) -> None:
        """Tell the others where this process is, so that errors name it, and compare facts: see `agree`."""
        if not self.alone:
            processes = self.gather_json(vars(this_process()), "the start")
            self._meetings.processes = [Process(**process) for process in processes]
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
            Another rank failed, ended, is elsewhere in the run, or is not here in time. All later meetings
            raise it too.
        """
        if self.alone:
            return np.array([facts], np.float64)
        headers, _ = self._meetings.exchange(moment, facts)
        return np.array([header.facts[: len(facts)] for header in headers], np.float64)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Report an exception in the block to the other ranks, and raise it again.

        They raise PeerError at their next meeting. Nested blocks report it once.
        """
        try:
            yield
        except BaseException as error:
            if not self.alone:
                self._meetings.tell(error)  # if this raises too, `error` is the context
            raise

    def sum(self, vector: Any) -> Vector:
        """Return the sum over all ranks, float64, of the same shape; the same bits on each rank.

        The vectors are added in the order of ranks.
        """
        local = np.asarray(vector, np.float64)
        if self.alone:
            return local
        if local.size <= FACTS:
            rows = self.meet("a sum", *local.ravel().tolist())
        else:
            rows = np.stack(
                [np.frombuffer(row, np.float64) for row in self._gather("a sum", local.tobytes())]
            )
        total = np.zeros(local.size)
        with np.errstate(all="ignore"):  # infinities of opposite signs
            for row in rows:
                total += row
        return total.reshape(local.shape)

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
                name = self._meetings.name
                self._meetings.fail(
                    f"{what} must be the same on all ranks, but on {name(0)}: {json.dumps(values[0])}, "
                    f"on {name(rank)}: {json.dumps(other)}",
                    [rank],
                )

    def all_reduce(self, arrays: Sequence[Any]) -> None:
        """Replace each array by its sum over all ranks, which must have met just before.

        The arrays are what the communicator takes: see `Communicator.asynchronous`.
        """
        self.all_reduce_groups([arrays] if arrays else [])

    def all_reduce_groups(self, groups: Iterable[Sequence[Any]]) -> None:
        """Do what `all_reduce` does, group by group: one group is summed while the next one is made.

        The groups are the same on all ranks.
        """
        self._collectives("all_reduce", groups)

    def all_reduce_tensors(self, tensors: Sequence[Any]) -> None:
        """Replace each tensor by its sum, on its device, as `all_reduce` does; for torch.distributed."""
        self._collectives("all_reduce_tensors", [tensors] if tensors else [])

    def broadcast(self, arrays: Sequence[Any]) -> None:
        """Replace each array by rank 0's; all ranks must have met just before."""
        self._collectives("broadcast", [arrays] if arrays else [])

    def close(self) -> None:
        """Leave the other ranks. An operation that hangs because of them is left to end with the process."""
        if not self.alone and not self._closed:
            self._closed = True
            self._meetings.close()

    def _collectives(self, method: str, groups: Iterable[Sequence[Any]]) -> None:
        if self.alone:
            return
        function = getattr(self.communicator, method)
        if self.communicator.asynchronous:
            for arrays in groups:
                function(arrays)
            return
        for operation in [self._meetings.begin(function, arrays) for arrays in groups]:
            self._meetings.finish(method, operation)

    def _gather(self, moment: str, content: bytes) -> list[bytes]:
        return self._meetings.exchange(moment, content=content)[1]


# Nothing else is asked of the communicator of a single process.
_alone = SimpleNamespace(name="alone", rank=0, size=1, asynchronous=False, **dict.fromkeys(CALLED_BY_SEVERAL))
ALONE = World(_alone)


def _load_arrays(content: bytes) -> list[Vector]:
    file, arrays = io.BytesIO(content), []
    while file.tell() < len(content):
        arrays.append(np.load(file, allow_pickle=False))
    return arrays
