"""Read all batches of an update before the first of them is trained on."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..sampling import TaskBatch
from ..spec.terms import Term
from ..utils.seeding import preserve_rng, random_state
from ..utils.stages import TRAIN

END = object()


class _Read(NamedTuple):
    """A batch that was read, and what goes with it: this process's share, and how often loaders were read."""

    raw: Any
    share: Any
    taken: Mapping[str, int]


class Windows:
    """Reads the batches that trainers accumulate, window by window.

    A loss with a normalizer of its own, such as the number of known labels, is divided by that of all batches
    of an update. So these are read before the first of them is trained on. If trainers accumulate different
    numbers of batches, a window ends where all of them have updated. A window never spans two epochs.

    `session` holds these trainers and loaders. `ends` says whether the running batch is the
    last one of an epoch that leaves the window incomplete. If the run resumes where batches were read ahead,
    `random` holds the random states from which to read on.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self.begin()

    def begin(self) -> None:
        """Begin a window, as at the start of an epoch."""
        self.ends = False
        self._window: list[_Read] = []  # those read in this run
        self._index = -1  # the running batch's position in the window
        self._done = 0  # the batches of the window that were trained on before the run was resumed
        self._measured: list[list[float]] = []  # by batch: its samples, and the terms' normalizers
        self._states: list[Any] = []  # the random states before each batch was read
        self.random: Mapping[str, Any] = {}

    @property
    def reads_ahead(self) -> bool:
        """Whether trainers accumulate, so that the batches of an update are read together."""
        return bool(self._session.trainers.window > 1)

    def read(
        self,
        batches: Iterator[Any],
        left: Callable[[], int | None],
        seed: Callable[[int], None],
        first: int,
        resume: Callable[[], None] | None,
    ) -> Iterator[Any]:
        """Yield batches, each after its window was read; for trainers that accumulate.

        ``left()`` returns how many batches the fit still trains on: no more are read. ``seed(number)`` seeds
        the operators before a batch is read, all but the first, whose number is `first`: with that one, a
        loader also draws the order of the others. `resume` restores the random states of a resumed run, whose
        window was read ahead, after the rest was read again.
        """
        length, start = self._session.trainers.window, first
        while True:
            most = left()
            wanted = length - self._done if most is None else min(length - self._done, max(most, 1))
            self._window = list(self._ahead(batches, range(first, first + wanted), start, seed))
            first += len(self._window)
            if resume is not None:
                resume()
            resume, loaders = None, self._session.loaders
            for number, (raw, share, taken) in enumerate(self._window):
                self._index = self._done + number
                self._session.readers[TRAIN].current.share = share
                if loaders is not None:
                    loaders.taken = dict(taken)
                self.ends = number + 1 == len(self._window) < wanted
                yield raw
            if len(self._window) < wanted:
                return
            self.begin()

    def _ahead(
        self, batches: Iterator[Any], numbers: Iterable[int], start: int, seed: Callable[[int], None]
    ) -> Iterator[_Read]:
        reader, loaders = self._session.readers[TRAIN], self._session.loaders
        for number in numbers:
            self._states.append(random_state())
            if number > start:
                seed(number)
            raw = next(batches, END)
            if raw is END:
                return
            yield _Read(_lasting(raw), reader.current.share, {} if loaders is None else loaders.taken)

    def shares(self, terms: Sequence[Term], samples: int) -> dict[str, float]:
        """Return the running batch's shares of the normalizers of its update, by term.

        A batch of these `samples` has that share of the update's samples. A trainer's gradients of all its
        batches, each counted with its samples, are then those of one batch. Only terms whose trainers
        accumulate are in it. All ranks must call this; the first call in a window reads the other batches.
        """
        if not self._window:
            return {}
        trainers, shares = self._session.trainers, dict[str, float]()
        windows = {term.key: trainers.window_of((term.trainers or list(trainers.get()))[0]) for term in terms}
        if len(self._measured) < self._done + len(self._window):
            self._measured += self._measure(terms)
        for column, term in enumerate(terms, 1):
            length = windows[term.key]
            start = self._index // length * length
            update = np.array(self._measured[start : start + length])
            if length > 1:
                shares[term.key] = float(update[:, column].sum() / max(update[:, 0].sum(), 1) * samples)
        return shares

    def _measure(self, terms: Sequence[Term]) -> list[list[float]]:
        """Return the samples and the normalizers of each batch in the window, over all ranks."""
        current = self._session.readers[TRAIN].current
        splitter, before = self._session.splitter(TRAIN, changes=False), current.share
        rows = np.zeros((len(self._window), 1 + len(terms)))
        with preserve_rng():
            for row, (raw, current.share, _) in zip(rows, self._window):
                try:
                    batch = splitter.split(raw)
                    row[:] = [batch.samples, *(self._session.normalizer(term, batch) for term in terms)]
                except Exception:  # raised again when the batch is trained on
                    row[:] = 0
        current.share = before
        return [list(map(float, row)) for row in self._session.world.sum(rows)]

    def state(self) -> dict[str, Any]:
        """Return what is known of the running window, for a checkpoint after the running batch.

        It is empty between two windows.
        """
        done = self._index + 1
        if self.ends or done in (0, self._session.trainers.window):
            return {}
        return {
            "done": done,
            "measured": self._measured[:done],
            "added": {} if (added := self._session.added()) is None else added.state(),
            # the next batch was read from here
            "random": self._states[done - self._done] if len(self._states) > done - self._done else {},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self.begin()
        self._done, self._measured, self.random = state["done"], [*state["measured"]], state["random"]
        self._index = self._done - 1
        if (added := self._session.added()) is not None:
            added.load(state["added"])


def _lasting(raw: Any) -> Any:
    """Return a batch that later ones do not overwrite: MXNet's iterators reuse their memory."""
    if isinstance(raw, TaskBatch):
        return TaskBatch({name: _lasting(batch) for name, batch in raw.batches.items()})
    if not hasattr(raw, "provide_data"):
        return raw
    copied = copy.copy(raw)
    copied.data, copied.label = (
        arrays and [array.copy() for array in arrays] for arrays in (raw.data, raw.label)
    )
    return copied
