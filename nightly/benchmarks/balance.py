"""A training step with each method of balancing, and the methods' solvers, beside TorchJD's.

Ours compare gradients of features, and of parameters as TorchJD's do. All train the same two nets.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from multifit import balance

from .child import Child
from .others import PYTHON
from .results import OURS, Row
from .rounds import Turn, alternate, timed
from .subjects import BALANCED, Balanced

__all__ = ["CASES", "FEATURES", "GRADIENTS", "LIBRARY", "LOSSES", "NAME", "SUM", "Solvers", "measure"]

NAME, LIBRARY, FEATURES = "balance", "TorchJD", f"{OURS}, features"
SUM = "the sum"
LOSSES = (SUM, "Uncertainty", "DWA", "FAMO")
GRADIENTS = ("UPGrad", "PCGrad", "CAGrad", "MGDA", "IMTLG")
THEIRS = (SUM, "Uncertainty", "DWA", "UPGrad", "PCGrad", "CAGrad", "MGDA")
ROUNDS, SECONDS = 40, 45.0  # a case begins no further round after so many seconds
GRAMIANS = 5


@dataclass(frozen=True)
class Solvers:
    """The weights for random gradients of some tasks, without a net."""

    count: int

    def __str__(self) -> str:
        return f"solver, {self.count} tasks"

    def arrays(self) -> list[Any]:
        """Return inner products of gradients, each of somewhat more numbers than there are tasks."""
        shape = (self.count, 2 * self.count + 10)
        rows = [np.random.RandomState(seed).randn(*shape) for seed in range(GRAMIANS)]
        return [each @ each.T for each in rows]


CASES = (*BALANCED, *map(Solvers, (2, 5, 10, 20, 40)))


def measure(case: Balanced | Solvers, epochs: int | None = None) -> Iterator[Row]:
    """Yield milliseconds per step, or per call of a solver; a row for each method."""
    theirs: tuple[str, ...] = GRADIENTS
    if isinstance(case, Solvers):
        steps, turns = GRAMIANS, {(OURS, name): _solving(case, name) for name in GRADIENTS}
    else:
        steps, turns = len(case.batches()), {(OURS, name): _training(case, name) for name in LOSSES}
        turns |= {(OURS, name): _training(case, name, on="parameters") for name in GRADIENTS}
        turns |= {(FEATURES, name): _training(case, name, on="features") for name in GRADIENTS}
        theirs = THEIRS
    with ExitStack() as stack:
        if Path(PYTHON).is_file():  # else only our own are measured
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            child = stack.enter_context(_child(case, f"{folder}/arrays.npz"))
            turns |= {(LIBRARY, name): partial(child.ask, name) for name in theirs}
        times = alternate(turns, epochs or ROUNDS, SECONDS)
    for name in dict.fromkeys(name for _, name in turns):
        seconds = {column: times[column, each] for column, each in turns if each == name}
        row = Row.of_seconds(NAME, f"{case}, {name}", seconds, steps)
        yield replace(row, unit="ms per call") if isinstance(case, Solvers) else row


def _training(case: Balanced, name: str, **options: Any) -> Turn:
    """Return the turn of an estimator, which has been fitted: its graphs are traced."""
    method = None if name == SUM else getattr(balance, name)(**options)
    estimator, batches = case.estimator(balance=method), case.batches()
    estimator.fit(batches, epochs=2, event_handlers=[])

    def epoch() -> None:
        for batch in batches:
            estimator.fit_batch(batch)
        estimator.figures("train")

    return timed(epoch)


def _solving(case: Solvers, name: str) -> Turn:
    method, gramians = getattr(balance, name)(), case.arrays()
    return timed(lambda: [method.solve(each) for each in gramians])


def _child(case: Balanced | Solvers, path: str) -> Child:
    """Write the case's arrays to a file, and start TorchJD's process, which reads them."""
    if isinstance(case, Solvers):
        arrays: Any = case.arrays()
    else:
        arrays = [np.concatenate([slot.asnumpy() for slot in slots]) for slots in zip(*case.batches())]
    np.savez(path, *arrays)
    kind, batch = (case.kind, len(case.batches()[0][0])) if isinstance(case, Balanced) else ("", 0)
    script = str(Path(__file__).parent / "rivals" / "torchjd_balance.py")
    command = [PYTHON, script, path, kind, str(batch), os.environ.get("OMP_NUM_THREADS", "1")]
    return Child(command, {"PYTHONPATH": ""})
