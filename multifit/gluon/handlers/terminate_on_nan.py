"""Stop when a loss or a gradient is NaN or infinite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...arguments import Count, checked
from ...protocols import MultiEstimator
from ...triggers import Every
from ..optim.parameters import statistics
from .skip_non_finite import all_finite


class TerminateOnNaN:
    """Stops a fit at the first batch in which a loss or a gradient is NaN or infinite, and logs which.

    The parameters stay as they were before that batch, including the running statistics of BatchNorm.
    Gradients are checked because losses do not show everything: behind a relu, NaN in the input leaves the
    loss finite and makes the weights NaN. Together with `SkipNonFinite`, this handler stops the fit before
    that one acts. With ``precision="float16"``, only losses are checked: gradients may overflow there, and
    such a batch updates nothing.

    Checking waits for the device. If that is too slow, check fewer batches: the parameters are then those
    from before the batch that was checked.

    Parameters
    ----------
    every : int
        Check every n-th batch, counted over all fits.

    Raises
    ------
    ValueError
        `every` is not a whole number of at least 1.
    """

    handles_non_finite = True  # so that numbers in slots that are not finite are no error

    @checked
    def __init__(self, every: Count = 1) -> None:
        self._trigger = Every(every, "batch")
        self._copies: list[tuple[Any, Any]] = []

    def batch_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Copy the statistics that the forward pass changes."""
        due = self._trigger.due(estimator.state, "batch_begin")
        changing = statistics(estimator.parameters).values() if due else ()
        self._copies = [(array, array.copy()) for parameter in changing for array in parameter.list_data()]

    def hold_update(self, estimator: MultiEstimator, loss: Mapping[str, list[Any]]) -> bool:
        """Check losses and gradients, and return whether the parameters must not be updated."""
        # The batch is not counted yet, as in batch_begin.
        if not self._trigger.due(estimator.state, "batch_begin"):
            return False
        scaled = estimator.plan is not None and estimator.plan.precision == "float16"
        problems = _problems("", loss)
        problems = problems or ([] if scaled else _gradient_problems(estimator.gradients()))
        if problems:
            for array, copy in self._copies:
                copy.copyto(array)
            losses, place = ", ".join(problems), estimator.state.place
            estimator.logger.error("%s: %s; the parameters are those from before this batch", place, losses)
            estimator.state.stop(f"{losses} ({place})")
        self._copies = []
        return bool(problems)


def _problems(kind: str, arrays: Mapping[str, list[Any]]) -> list[str]:
    """Return which arrays are NaN or infinite; `arrays` are lists per device, by name.

    If a batch is that of one of several loaders, the losses of other tasks are None.
    """
    problems = []
    for name, values in arrays.items():
        pieces = [np.asarray(value.asnumpy(), dtype="float64") for value in values if value is not None]
        if not all(np.isfinite(piece).all() for piece in pieces):
            wrong = "NaN" if any(np.isnan(piece).any() for piece in pieces) else "infinite"
            problems.append(f"{kind}{name} is {wrong}")
    return problems


def _gradient_problems(gradients: Mapping[str, Mapping[str, list[Any]]]) -> list[str]:
    """Return which gradients, by trainer and parameter, are NaN or infinite."""
    problems = []
    for parameters in gradients.values():
        flags = [all_finite(list(on_device)) for on_device in zip(*parameters.values())]
        if not all(flag.asscalar() for flag in flags):  # the norm of large finite gradients overflows too
            problems += _problems("the gradient of ", parameters)
    return problems
