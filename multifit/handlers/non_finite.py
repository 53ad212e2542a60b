"""Skip updates, or stop, if losses or gradients are not finite."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..utils.arguments import Count, checked
from ..utils.protocols import MultiEstimator
from .handler import Handler
from .triggers import Every


class SkipNonFinite(Handler):
    """Sets all gradients of a trainer to 0 in batches where one of them is not finite.

    These are batches in which the norm of the gradients, computed in float32, is NaN or infinite: one NaN,
    one infinity, or one number beyond 1e19 is enough. Momentum and weight decay still update the parameters.

    Gradients are checked on the device, without waiting for it, after all other handlers have changed them
    and before they are clipped. If batches were skipped, their number is logged at the end of the epoch. To
    check the losses and stop the run instead, use `TerminateOnNaN`.
    """

    priority = 900.0  # after all handlers that change gradients
    handles_non_finite = True  # so that numbers in slots that are not finite are no error

    def __init__(self) -> None:
        self._updates: dict[str, int] = {}  # by trainer, as are those skipped
        self._skipped: dict[str, Any] = {}

    def train_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Forget an earlier fit."""
        self._updates, self._skipped = {}, {}

    def change_gradients(self, estimator: MultiEstimator) -> None:
        """Set the gradients of trainers to 0 if some are not finite."""
        for trainer, parameters in estimator.gradients().items():
            for device, gradients in enumerate(zip(*parameters.values())):
                flag = estimator.arrays.all_finite(gradients)
                estimator.arrays.zero_unless(flag, gradients)
                if device == 0:  # all devices have the same gradients
                    self._updates[trainer] = self._updates.get(trainer, 0) + 1
                    self._skipped[trainer] = self._skipped.get(trainer, 0.0) + (1.0 - flag)

    def epoch_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Log how many updates were skipped, and reset the counts."""
        for trainer, skipped in self._skipped.items():
            count = int(estimator.arrays.numpy(skipped).item())
            if count:
                estimator.logger.warning(
                    '%d of %d updates of the trainer "%s" in epoch %d had gradients that were not finite '
                    "and were set to 0",
                    count,
                    self._updates[trainer],
                    trainer,
                    estimator.state.epoch + 1,
                )
        self._updates, self._skipped = {}, {}  # not when an epoch begins: it may continue from a checkpoint

    def state_dict(self) -> dict[str, Any]:
        """Return the counts of the current epoch."""
        return {"updates": dict(self._updates), "skipped": dict(self._skipped)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._updates, self._skipped = dict(state["updates"]), dict(state["skipped"])


class TerminateOnNaN(Handler):
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
        changing = estimator.arrays.held("statistics").values() if due else ()
        self._copies = [(array, estimator.arrays.copy(array)) for arrays in changing for array in arrays]

    def hold_update(self, estimator: MultiEstimator, loss: Mapping[str, list[Any]]) -> bool:
        """Check losses and gradients, and return whether the parameters must not be updated."""
        # The batch is not counted yet, as in batch_begin.
        if not self._trigger.due(estimator.state, "batch_begin"):
            return False
        scaled = estimator.plan is not None and estimator.plan.precision == "float16"
        problems = _problems("", loss, estimator.arrays.numpy)
        problems = problems or ([] if scaled else _gradient_problems(estimator))
        if problems:
            for array, copy in self._copies:
                estimator.arrays.assign(array, copy)
            losses, place = ", ".join(problems), estimator.state.place
            estimator.logger.error("%s: %s; the parameters are those from before this batch", place, losses)
            estimator.state.stop(f"{losses} ({place})")
        self._copies = []
        return bool(problems)


def _problems(kind: str, arrays: Mapping[str, list[Any]], as_numpy: Callable[[Any], Any]) -> list[str]:
    """Return which arrays are NaN or infinite; `arrays` are lists per device, by name.

    If a batch is that of one of several loaders, the losses of other tasks are None.
    """
    problems = []
    for name, values in arrays.items():
        pieces = [np.asarray(as_numpy(value), dtype="float64") for value in values if value is not None]
        if not all(np.isfinite(piece).all() for piece in pieces):
            wrong = "NaN" if any(np.isnan(piece).any() for piece in pieces) else "infinite"
            problems.append(f"{kind}{name} is {wrong}")
    return problems


def _gradient_problems(estimator: MultiEstimator) -> list[str]:
    """Return which gradients, by trainer and parameter, are NaN or infinite."""
    problems, functions = [], estimator.arrays
    for parameters in estimator.gradients().values():
        flags = [functions.all_finite(on_device) for on_device in zip(*parameters.values())]
        # the norm of large finite gradients overflows too
        if not all(functions.numpy(flag).item() for flag in flags):
            problems += _problems("the gradient of ", parameters, functions.numpy)
    return problems
