"""Step time of multifit over a hand-written loop's and over Gluon's Estimator's.

Run from the top of the repository: ``python -m nightly.benchmarks.step_time [--epochs N] [NAME …]``. One fit
of multifit runs; after each of its epochs the other two run one epoch of their own on the same batches: when
the machine changes its speed, it does for all. Ratios are taken epoch by epoch; below 1 multifit is faster.
"""

from __future__ import annotations

import argparse
import time
from statistics import median, quantiles
from typing import Any

import mxnet as mx

from multifit.tables import table

from .loops import Prepared, gluon_epoch, hand_written_epoch, multifit_fit
from .models import CASES, Case

__all__ = ["main", "measure"]


class _Rounds:
    """Times each epoch of the fit, and lets the others run theirs in between."""

    priority = -999.0  # right behind the handler that reads the figures, which every contender does too

    def __init__(self, others: dict[str, Any], batches: Any) -> None:
        self.times: dict[str, list[float]] = {"multifit": [], **{name: [] for name in others}}
        self._others, self._batches, self._begun = others, batches, 0.0

    def epoch_begin(self, estimator: Any) -> None:
        mx.nd.waitall()
        self._begun = time.perf_counter()

    def epoch_end(self, estimator: Any) -> None:
        mx.nd.waitall()
        self.times["multifit"].append(time.perf_counter() - self._begun)
        for name, epoch in self._others.items():
            begun = time.perf_counter()
            epoch(self._batches)
            mx.nd.waitall()
            self.times[name].append(time.perf_counter() - begun)


def measure(case: Case, epochs: int) -> dict[str, list[float]]:
    """Return milliseconds per step of each contender, epoch by epoch; the first epochs are left out."""
    batches = Prepared(case.data())
    rounds = _Rounds({"hand-written": hand_written_epoch(case), "Gluon": gluon_epoch(case)}, batches)
    multifit_fit(case, batches, epochs + 2, rounds)
    return {name: [1000 * t / len(batches) for t in times[2:]] for name, times in rounds.times.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="cases whose name begins so; all by default")
    parser.add_argument("--epochs", type=int, default=15, help="rounds of each contender")
    options = parser.parse_args()
    chosen = [
        c
        for c in CASES
        if not options.names or any(c.name.lower().startswith(n.lower()) for n in options.names)
    ]
    rows = []
    for case in chosen:
        times = measure(case, options.epochs)
        ours = times["multifit"]
        row: list[object] = [case.name, *(f"{median(values):.3f}" for values in times.values())]
        for name in ("hand-written", "Gluon"):
            ratios = [a / b for a, b in zip(ours, times[name])]
            low, _, high = quantiles(ratios, n=4)
            row.append(f"{median(ratios):.3f} ({low:.3f} … {high:.3f})")
        rows.append(row)
        print(f"{case.name} done", flush=True)
    print("\nms per step: medians; ratios: median (quartiles) of pairs\n")
    print(table(rows, ("net", "multifit", "hand-written", "Gluon", "/ hand-written", "/ Gluon")))


if __name__ == "__main__":
    main()
