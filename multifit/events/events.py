"""The events and hooks that handlers can implement, and the order in which handlers are called."""

from __future__ import annotations

import math
from typing import NamedTuple

EVENTS = (
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

# Methods by which handlers change a training step; see `TrainingHooks`.
HOOKS = (
    "change_batch",
    "change_outputs",
    "change_objective",
    "hold_update",
    "change_gradients",
    "around_step",
    "around_evaluation",
    "around_fit",
)

# The arguments that methods may take besides the estimator; those of other events and hooks take none.
_OF_BATCH = ("batch", "pred", "label", "loss")
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "epoch_begin": ("batches",),
    "batch_begin": ("batch",),
    "batch_end": _OF_BATCH,
    "epoch_end": ("complete",),
    "evaluate_begin": ("batches",),
    "evaluate_batch_begin": ("batch",),
    "evaluate_batch_end": _OF_BATCH,
    "evaluate_end": ("figures",),
    "change_batch": ("slots",),
    "change_outputs": ("outputs", "slots"),
    "change_objective": ("objectives", "pred", "label", "loss", "scale"),
    "hold_update": ("loss",),
}

# The event for the ``batch_end`` of handlers that Gluon's Estimator calls before its update; see
# `TrainingHooks`.
BEFORE_UPDATE = "before_update"

# Emitted after the last batch of a fit that was asked to stop within an epoch, before ``epoch_end``, in which
# handlers count the epoch.
AFTER_LAST_BATCH = "after_last_batch"

# Older names of EVENTS and HOOKS, kept because `multifit` exports them.
MOMENTS, CHANGES = EVENTS, HOOKS


class PassEvents(NamedTuple):
    """The events of one pass over data."""

    begin: str
    batch_begin: str
    batch_end: str
    end: str


TRAINING_EVENTS = PassEvents("epoch_begin", "batch_begin", "batch_end", "epoch_end")
EVALUATION_EVENTS = PassEvents("evaluate_begin", "evaluate_batch_begin", "evaluate_batch_end", "evaluate_end")

# Called outside of epochs too, where the run's counters are those of the next epoch and of the last batch.
OUTSIDE = ("train_begin", "train_end", "around_fit", "around_evaluation", *EVALUATION_EVENTS)


class Priority:
    """Named values for a handler's ``priority``: handlers with lower numbers are called earlier.

    Handlers of equal priority are called in the order in which they were passed. The scale is that of Gluon's
    handlers: its GradientUpdateHandler has -2000, its MetricHandler -1000, its LoggingHandler infinity.
    """

    UPDATE = -2000.0  # up to here, ``batch_end`` is called between backward and update
    METRICS = -1000.0  # records the epoch's training figures, which all others may read
    VALIDATION = -999.0  # records the validation figures, next to the others, as Gluon's handlers expect
    NORMAL = 0.0  # a handler without a priority
    STOPPING = 1000.0  # after handlers that may give a better reason to stop, or change the limits
    CHECKPOINT = 1500.0  # saves what all handlers before it have changed
    PROGRESS = 2000.0  # closes its bars before anything is printed
    LOGGING = math.inf  # sees what all others did


def implements(handler: object, event: str) -> bool:
    """Return whether `handler` has a method for the event or hook `event`."""
    return callable(getattr(handler, event, None))


def priority_of(handler: object) -> float:
    """Return the handler's priority; NORMAL if it has none."""
    return float(getattr(handler, "priority", Priority.NORMAL))
