"""Take gradients that are not finite as zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..compat import mx

__all__ = ["SkipNonFinite"]

CHUNK = 200  # mxnet looks at no more arrays at once


class SkipNonFinite:
    """Takes all gradients of a trainer as 0 in a batch where any of them is not finite.

    That is where their norm, computed in float32, is NaN or infinite: one NaN, one infinity, or one number
    beyond 1e19 is enough.

    The parameters then move no further than momentum and weight decay would move them anyway. It looks at the
    gradients on the device, and waits for nothing; how many batches were left out is logged at the end of an
    epoch in which there were any. It comes after all other handlers that change gradients, and before they
    are clipped. Where losses, too, are to be looked at, and the run is to end, take `TerminateOnNaN`.
    """

    priority = 900.0  # after those that change gradients

    def __init__(self) -> None:
        self._batches = 0
        self._skipped: dict[str, Any] = {}

    def epoch_begin(self, estimator: Any, **facts: Any) -> None:
        """Begin to count anew."""
        self._batches, self._skipped = 0, {}

    def change_gradients(self, estimator: Any) -> None:
        """Zero the gradients of those trainers that have some which are not finite."""
        self._batches += 1
        for trainer, own in estimator.gradients().items():
            devices = [list(gradients) for gradients in zip(*own.values())]
            flags = [_guard(gradients) for gradients in devices]
            for flag in flags[:1]:  # all devices hold the same gradients
                self._skipped[trainer] = self._skipped.get(trainer, 0.0) + (1.0 - flag)

    def epoch_end(self, estimator: Any, **facts: Any) -> None:
        """Log what was left out."""
        for trainer, skipped in self._skipped.items():
            count = int(skipped.asscalar())
            if count:
                estimator.logger.warning(
                    '%d of %d updates of the trainer "%s" in epoch %d had gradients that are not finite, '
                    "which were taken as 0",
                    count,
                    self._batches,
                    trainer,
                    estimator.state.epoch + 1,
                )

    def state_dict(self) -> dict[str, Any]:
        """Return what was counted in the running epoch."""
        return {"batches": self._batches, "skipped": dict(self._skipped)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set what :meth:`state_dict` returned."""
        self._batches, self._skipped = state["batches"], dict(state["skipped"])


def _guard(gradients: list[Any]) -> Any:
    """Zero one device's gradients unless all are finite; return whether they are: 1 or 0, of shape (1,)."""
    flag = _all_finite(gradients)
    for gradient in gradients:
        if gradient.stype != "default":
            dense = gradient.tostype("default")
            _keep(dense, flag)
            dense.tostype(gradient.stype).copyto(gradient)
        else:
            _keep(gradient, flag)
    return flag


def _keep(gradient: Any, flag: Any) -> None:
    # A sequence of one step, valid or not: what is not is overwritten. A product would not do, as 0 * NaN is
    # NaN; `where` takes six times as long. The reshaped array shares its memory with the gradient.
    step = gradient.reshape((1, 1, -1))
    mx.nd.SequenceMask(step, flag, use_sequence_length=True, value=0, out=step)


def _all_finite(gradients: list[Any]) -> Any:
    by_dtype: dict[Any, list[Any]] = {}
    for gradient in gradients:
        by_dtype.setdefault(np.dtype(gradient.dtype), []).append(gradient.tostype("default"))
    chunks = [own[i : i + CHUNK] for own in by_dtype.values() for i in range(0, len(own), CHUNK)]
    # not multi_all_finite, which takes forty times as long
    squares = [mx.nd.multi_sum_sq(*chunk, num_arrays=len(chunk)) for chunk in chunks]
    total = mx.nd.sum(mx.nd.concat(*squares, dim=0), axis=0, keepdims=True)
    return mx.nd.contrib.isfinite(total)
