"""Which checkpoints to keep."""

from __future__ import annotations

from collections.abc import Iterable

from .finding import Entry

__all__ = ["superfluous"]


def superfluous(entries: Iterable[Entry], keep_last: int, keep_best: int, mode: str | None) -> list[Entry]:
    """Return the checkpoints that are neither among the last nor among the best, the oldest first.

    Parameters
    ----------
    entries : iterable of Entry
        All that there are.
    keep_last, keep_best : int
        How many of each kind to keep; one that is of both kinds counts for both.
    mode : {"min", "max"}, optional
        Which values are better; None: there are no best. Of equal values the older is better, as it did not
        take the later one's training; a checkpoint without a value is never among the best.
    """
    ordered = sorted(entries, key=lambda entry: entry.order)
    kept = {entry.path for entry in ordered[max(0, len(ordered) - keep_last) :]}
    if mode is not None:
        sign = 1.0 if mode == "min" else -1.0
        measured = [(sign * entry.value, entry.path) for entry in ordered if entry.value is not None]
        kept |= {path for _, path in sorted(measured, key=lambda pair: pair[0])[:keep_best]}
    return [entry for entry in ordered if entry.path not in kept]
