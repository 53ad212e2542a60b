"""The figures of one metric in one stage: their names and values."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import CLEAR, Problem, counted, last_line
from ..spec.names import listed
from ..spec.terms import MetricTerm


class MetricFigures:
    """The names and values of the figures of a `metric`, which is declared as `term`.

    `measured` says whether something was measured since the last reset.
    """

    def __init__(self, term: MetricTerm, metric: Any) -> None:
        self.term, self.metric, self.measured = term, metric, False
        self._names: list[str] | None = None
        self._warned = False

    def could_compute(self, compute: Callable[[], object], complete: bool) -> bool:
        """Compute a function of the pass so far; return whether it could be computed.

        Unless the pass is `complete`, it may raise ValueError, because the samples are too few.
        """
        try:
            compute()
            return True
        except ValueError as error:
            if complete or isinstance(error, CLEAR):
                raise
            if self._warned:
                return False
            self._warned = True
            logging.getLogger("multifit").warning(
                "%s cannot be computed from the batches so far (%s); it is computed again at the end of the "
                "pass", self.term.where, last_line(error),
            )  # fmt: skip
            return False

    def own_names(self) -> Sequence[str]:
        """Return the names of the metric's figures, if it is known which it has."""
        return ()

    def result(self) -> Any:
        """Return what it has computed: a value, a name and a value, lists of these, or unnamed values."""
        raise NotImplementedError

    @property
    def names(self) -> list[str]:
        """The names of its figures; some metrics know them only once they have measured something."""
        if self.measured or self._names is None:
            self._names = list(self.figures())
        return self._names

    @names.setter
    def names(self, names: Sequence[str]) -> None:
        self._names = list(names)

    def figures(self) -> dict[str, float]:
        """Return its figures by name; NaN if nothing was measured since the last reset."""
        if self._names is not None and not self.measured:
            return dict.fromkeys(self._names, math.nan)
        names, values = self._read()
        if len(names) == 1 and not listed(self.term.spec.names):
            return {self.term.key: values[0]}
        return {f"{self.term.key}.{name}": value for name, value in zip(names, values)}

    def problem(self) -> Problem | None:
        """Return the problem with the figures' names, if there is one; needs a measured batch."""
        declared = listed(self.term.spec.names)
        names, values = self._read()
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            message = f'{type(self.metric).__name__} returns two figures named "{repeated}"'
            return Problem("spec", f"{self.term.where}: {message}; give names=[...], one for each")
        if len(names) == len(values):
            return None
        hint = f"names= gives {len(declared)}" if declared else "give names=[...], one for each"
        returned = f"{type(self.metric).__name__} returns {counted(len(values), 'figure')}"
        return Problem("spec", f"{self.term.where}: {returned}; {hint}")

    def _read(self) -> tuple[list[str], list[float]]:
        declared = list(listed(self.term.spec.names) or self.own_names())
        if not self.measured:
            return declared or [self.term.key], [math.nan] * max(len(declared), 1)
        names, values = _names_and_values(self.result())
        return declared or names or ([self.term.key] if len(values) == 1 else []), values


def _names_and_values(result: Any) -> tuple[list[str], list[float]]:
    """Split what a metric has computed; gluoncv's SegmentationMetric returns values without names."""
    names, values = result if isinstance(result, (list, tuple)) and len(result) == 2 else ((), result)
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        names, values = (), result
    return list(names), [float(value) for value in np.atleast_1d(values)]
