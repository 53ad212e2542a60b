"""When handlers are called, and in which order."""

from __future__ import annotations

import math

__all__ = ["CHANGES", "MOMENTS", "Priority", "implements", "priority_of"]

MOMENTS = (
    "train_begin",
    "epoch_begin",
    "batch_begin",
    "batch_end",
    "epoch_end",
    "train_end",
    "evaluate_begin",
    "evaluate_batch_begin",
    "evaluate_batch_end",
    "evaluate_end",
)

# What handlers may change of a training step; see `Flow`.
CHANGES = (
    "change_batch",
    "change_outputs",
    "change_objective",
    "hold_update",
    "change_gradients",
    "around_step",
    "around_evaluation",
    "around_fit",
)


class Priority:
    """Names for a handler's ``priority``: the lower the number, the earlier the call.

    Handlers of equal priority keep the order in which they were given. The numbers are on the scale of
    Gluon's handlers: its own MetricHandler has -1000, its LoggingHandler infinity.
    """

    METRICS = -1000.0  # the epoch's training figures: everybody may read them
    VALIDATION = -900.0  # the validation figures
    NORMAL = 0.0  # a handler without a priority
    STOPPING = 1000.0  # after all that may have a better reason to stop, or may move the limits
    CHECKPOINT = 1500.0  # keeps what all others made of the moment
    PROGRESS = 2000.0  # closes its bars before something is printed
    LOGGING = math.inf  # sees what all others did


def implements(handler: object, moment: str) -> bool:
    """Whether `handler` is to be called at `moment`."""
    return callable(getattr(handler, moment, None))


def priority_of(handler: object) -> float:
    """Return the handler's priority; NORMAL where it has none."""
    return float(getattr(handler, "priority", Priority.NORMAL))
