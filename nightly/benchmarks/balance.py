"""A training step with each method of balancing, relative to one with the sum of the losses.

Beside it are TorchJD's methods on the same two nets in PyTorch, relative to PyTorch's own sum.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from multifit import balance

from .child import Child
from .others import PYTHON
from .results import Row
from .rounds import Turn, alternate, timed
from .subjects import BALANCED, Heads

__all__ = ["CASES", "LIBRARY", "METHODS", "NAME", "SUM", "measure", "over_the_sum"]

NAME = "balance"
CASES = BALANCED
SUM = "sum of losses"
ROUNDS = 40
METHODS: Mapping[str, Callable[[], Any]] = {
    name: getattr(balance, name)
    for name in (
        "Uncertainty", "DWA", "RLW", "GLS", "IMTLL", "FAMO", "GradNorm", "PCGrad", "MGDA", "CAGrad", "IMTLG",
        "FairGrad", "AlignedMTL", "UPGrad", "DualProj", "ConFIG",
    )
}  # fmt: skip
LIBRARY = "PyTorch"
THEIRS = ("UW", "DWA", "PCGrad", "MGDA", "CAGrad", "UPGrad")


def measure(case: Heads, epochs: int | None = None) -> Iterator[Row]:
    """Yield milliseconds per step with each method, and their ratios to those of the sum."""
    batches = case.batches()
    turns = {SUM: _turn(case, None), **{name: _turn(case, make()) for name, make in METHODS.items()}}
    times = alternate(turns, epochs or ROUNDS)
    yield Row.of_seconds(NAME, case.name, times, len(batches))
    yield Row(NAME, f"{case}, over the sum", "times the sum's step", over_the_sum(times))
    if Path(PYTHON).is_file():  # else only our own are measured
        times = _torch_times(case, epochs or ROUNDS)
        yield Row.of_seconds(NAME, f"{case}, {LIBRARY}", times, len(batches))
        yield Row(NAME, f"{case}, {LIBRARY}, over its sum", "times the sum's step", over_the_sum(times))


def over_the_sum(times: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """Return the times of each method divided by those of the sum, round by round."""
    return {
        name: [own / plain for own, plain in zip(seconds, times[SUM])]
        for name, seconds in times.items()
        if name != SUM
    }


def _turn(case: Heads, method: Any) -> Turn:
    """Return the turn of an estimator, which has been fitted: its graphs are traced."""
    estimator, batches = case.estimator(balance=method), case.batches()
    estimator.fit(batches, epochs=2, event_handlers=[])

    def epoch() -> None:
        for batch in batches:
            estimator.fit_batch(batch)
        estimator.figures("train")

    return timed(epoch)


def _torch_times(case: Heads, rounds: int) -> dict[str, list[float]]:
    with ExitStack() as stack:
        file = str(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "digits.npz")
        image, kind, odd = (
            np.concatenate([slot.asnumpy() for slot in slots]) for slots in zip(*case.batches())
        )
        np.savez(file, image=image, kind=kind.astype("int64"), odd=odd)
        script = str(Path(__file__).parent / "rivals" / "torchjd_balance.py")
        threads = os.environ.get("OMP_NUM_THREADS", "1")
        child = stack.enter_context(Child([PYTHON, script, file, case.kind, threads], {"PYTHONPATH": ""}))
        return alternate({name: partial(child.ask, name) for name in (SUM, *THEIRS)}, rounds)
