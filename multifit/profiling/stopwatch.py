"""A stopwatch for the parts of a step, which may be nested, and the parts computed from its laps."""

from __future__ import annotations

from typing import Any, Callable

from .measurements import Part

Name = tuple[str, ...]  # a part and its piece: ("handlers", "MixUp")
Laps = list[dict[Name, list[float]]]  # per step and part: milliseconds that Python works, and in all


class Stopwatch:
    """Measures parts as ``with watch("update", "encoder"):``; nested parts are not counted twice.

    `clock` returns seconds, `busy` the seconds that this thread has worked: it stands still while the thread
    waits. `drain` is called where a part ends or is interrupted by another one, and waits for the work that
    the part began, which belongs to its whole time.
    """

    def __init__(
        self, clock: Callable[[], float], busy: Callable[[], float], drain: Callable[[], None]
    ) -> None:
        self.clock, self.busy, self.drain = clock, busy, drain
        self.laps: Laps = []
        self._lap: dict[Name, list[float]] = {}
        self._open: list[Name] = []
        self._since = self._busy_since = 0.0

    def __call__(self, *name: str) -> _Span:
        """Return the context manager of a part."""
        return _Span(self, name)

    def lap(self) -> None:
        """End a step."""
        self.laps.append(self._lap)
        self._lap = {}

    def begin(self, name: Name) -> None:
        """Begin a part; the part around it pauses."""
        if self._open:
            self._count()
        self._open.append(name)
        self._since, self._busy_since = self.clock(), self.busy()

    def end(self) -> None:
        """End the innermost part; the part around it continues."""
        self._count()
        self._open.pop()

    def _count(self) -> None:
        busy = self.busy()
        self.drain()
        end = self.clock()
        times = self._lap.setdefault(self._open[-1], [0.0, 0.0])
        times[0] += 1000 * (busy - self._busy_since)
        times[1] += 1000 * (end - self._since)
        self._since, self._busy_since = self.clock(), self.busy()


class _Span:
    # a class, not a generator, which is slower: it is entered a dozen times per step
    __slots__ = ("_name", "_watch")

    def __init__(self, watch: Stopwatch, name: Name) -> None:
        self._watch, self._name = watch, name

    def __enter__(self) -> None:
        self._watch.begin(self._name)

    def __exit__(self, *error: Any) -> None:
        self._watch.end()


ORDER = ("data", "forward", "backward", "update", "figures", "handlers")


def part_times(drained: Laps, free: Laps) -> list[Part]:
    """Return the parts in the order of a step, each followed by its pieces.

    In `drained` laps the engine was waited for after each part, in `free` laps it was not.
    """
    names = dict.fromkeys(name for lap in (*drained, *free) for name in lap)
    parts = []
    for whole in ORDER:
        pieces = [name for name in names if name[0] == whole and len(name) > 1]
        parts += [_part(name, drained, free) for name in [(whole,), *pieces]]
    return parts


def _part(name: Name, drained: Laps, free: Laps) -> Part:
    known = any(each[: len(name)] == name for lap in free for each in lap)
    python = _sums(name, 0, free if known else drained)
    return Part("/".join(name), _sums(name, 1, drained), python, _sums(name, 1, free) if known else ())


def _sums(name: Name, which: int, laps: Laps) -> tuple[float, ...]:
    return tuple(
        sum(times[which] for each, times in lap.items() if each[: len(name)] == name) for lap in laps
    )
