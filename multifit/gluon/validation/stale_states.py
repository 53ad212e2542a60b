"""Find optimizers' states that no longer fit their parameters, because the net was cast."""

from __future__ import annotations

from typing import Any, Iterator

import numpy as np

from ...errors import Problem
from ..engine import Engine
from ..execution.nesting import flatten


def stale_states(engine: Engine) -> list[Problem]:
    """Return a problem for each trainer whose optimizer has states of another dtype than the parameters.

    MXNet's operators would fail on them. Float32 states of float16 parameters are meant so.
    """
    pairs = {name: next(_stale(handle.trainer), None) for name, handle in engine.trainers.get().items()}
    return [
        Problem(
            "trainer",
            f'trainers["{name}"]: its optimizer keeps {pair[1]} numbers for {pair[0]} parameters, as the net '
            "was cast after it was trained; make a new estimator, with new trainers",
        )
        for name, pair in pairs.items()
        if pair is not None
    ]


def _stale(trainer: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the dtypes of parameters, each with that of its state, where they do not fit."""
    for updater in trainer._updaters:
        for index, state in updater.states.items():
            of_parameter = np.dtype(trainer._params[index].dtype)
            arrays = list[Any]()
            flatten(state, arrays)
            for array in arrays:
                if of_parameter not in ("float16", np.dtype(array.dtype)):
                    yield of_parameter, np.dtype(array.dtype)
