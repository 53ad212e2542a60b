"""The parts of a step, computed from the laps of a stopwatch."""

from __future__ import annotations

from .measurements import Part
from .stopwatch import Laps, Name

__all__ = ["part_times"]

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
