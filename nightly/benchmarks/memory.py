"""Peak memory compared with the hand-written loop's, and whether it stays flat over 10 000 batches.

Every contender runs in a fresh process, since a process's peak never falls. What training adds is measured
apart from imports and data.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Iterator

import mxnet as mx

from .answering import Line
from .child import Child
from .rows import OURS, Row
from .subjects import HEADS, SINGLES, Subject

__all__ = ["CASES", "NAME", "measure"]

NAME = "memory"
WANTED = ("MLP", "2 heads", "64 heads", "ResNet18 thumbnail", "tiny FCN, mean IoU")
CASES = tuple(case for case in (*SINGLES, *HEADS) if case.name in WANTED)
ROUNDS, EPOCHS = 3, 5
EARLY, LATE = 1000, 10_000  # batches after which the MLP's memory is measured


def measure(case: Subject, epochs: int | None = None) -> Iterator[Row]:
    """Yield megabytes: at the peak, and what training added; for the MLP also after many batches."""
    peaks: dict[str, list[float]] = {}
    grown: dict[str, list[float]] = {}
    for _ in range(min(epochs or ROUNDS, ROUNDS)):
        for name in (OURS, "hand-written"):
            before, peak = _ask(name, case, f"{EPOCHS * len(case.batches())}")
            peaks.setdefault(name, []).append(peak)
            grown.setdefault(name, []).append(peak - before)
    yield Row(NAME, f"{case}, peak", "MB", peaks)
    yield Row(NAME, f"{case}, growth by training", "MB", grown)
    if case.name == "MLP":
        early, late = _ask(OURS, case, f"{EARLY}", f"{LATE if epochs is None else 2 * EARLY}")[2:]
        yield Row(NAME, "MLP, at the end of many batches", "MB", {"early": [early], "late": [late]})
        yield Row(NAME, "MLP, many batches", "of what it was early", {"late": [late / early]})


def _ask(contender: str, case: Subject, *batches: str) -> list[float]:
    """Train in a fresh process; return its memory before and its peak, then its memory after each request."""
    with Child([sys.executable, "-m", __spec__.name, contender, case.name]) as child:
        first = child.ask(batches[0])
        if len(batches) == 1:
            return [child.greeting, first[1]]
        return [child.greeting, first[1], first[0], child.ask(batches[1])[0]]


def _megabytes(what: str) -> float:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(what + ":")) / 1024


def _epochs(contender: str, case: Subject) -> Callable[[int], Any]:
    """Return a function that trains for a number of epochs."""
    batches = case.batches()
    if contender == OURS:
        estimator = case.estimator()
        return lambda count: estimator.fit(batches, epochs=count)
    epoch = case.hand_written()
    return lambda count: [epoch(batches) for _ in range(count)]


def _serve(contender: str, name: str) -> None:
    """Train up to the number of batches that a request names; answer with the memory and its peak."""
    case = next(case for case in CASES if case.name == name)
    per_epoch, line, done = len(case.batches()), Line(), 0
    mx.nd.waitall()
    line.answer(_megabytes("VmRSS"))
    train = None
    while request := line.wait():
        train = train or _epochs(contender, case)
        count = -(-int(request) // per_epoch) - done
        train(count)
        mx.nd.waitall()
        done += count
        line.answer([_megabytes("VmRSS"), _megabytes("VmHWM")])


if __name__ == "__main__":
    _serve(*sys.argv[1:])
