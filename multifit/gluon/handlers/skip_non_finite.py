"""Set gradients to zero if they are not finite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...protocols import MultiEstimator
from ..compat import mx

CHUNK = 200  # MXNet takes no more arrays at once


class SkipNonFinite:
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
            flags = [_zero_unless_finite(list(gradients)) for gradients in zip(*parameters.values())]
            for flag in flags[:1]:  # all devices have the same gradients
                self._updates[trainer] = self._updates.get(trainer, 0) + 1
                self._skipped[trainer] = self._skipped.get(trainer, 0.0) + (1.0 - flag)

    def epoch_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Log how many updates were skipped, and reset the counts."""
        for trainer, skipped in self._skipped.items():
            count = int(skipped.asscalar())
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
        self._skipped = dict(state["skipped"])
        older = dict.fromkeys(self._skipped, state.get("batches", 0))  # of all trainers together
        self._updates = dict(state.get("updates", older))


def _zero_unless_finite(gradients: list[Any]) -> Any:
    """Set one device's gradients to 0 unless all are finite; return 1 if they are, else 0, of shape (1,)."""
    flag = all_finite(gradients)
    for gradient in gradients:
        if gradient.stype != "default":
            dense = gradient.tostype("default")
            _keep_if(dense, flag)
            dense.tostype(gradient.stype).copyto(gradient)
        else:
            _keep_if(gradient, flag)
    return flag


def _keep_if(gradient: Any, flag: Any) -> None:
    # The gradient becomes a sequence of one step, which is overwritten if the length is 0. A product would
    # not work, because 0 * NaN is NaN; `where` takes six times as long. The reshaped array shares its memory
    # with the gradient.
    step = gradient.reshape((1, 1, -1))
    mx.nd.SequenceMask(step, flag, use_sequence_length=True, value=0, out=step)


def all_finite(gradients: list[Any]) -> Any:
    """Return 1 if the norm of one device's gradients is finite, else 0, of shape (1,)."""
    by_dtype: dict[Any, list[Any]] = {}
    for gradient in gradients:
        by_dtype.setdefault(np.dtype(gradient.dtype), []).append(gradient.tostype("default"))
    chunks = [arrays[i : i + CHUNK] for arrays in by_dtype.values() for i in range(0, len(arrays), CHUNK)]
    # multi_all_finite takes forty times as long
    squares = [mx.nd.multi_sum_sq(*chunk, num_arrays=len(chunk)) for chunk in chunks]
    total = mx.nd.sum(mx.nd.concat(*squares, dim=0), axis=0, keepdims=True)
    return mx.nd.contrib.isfinite(total)
