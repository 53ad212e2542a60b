"""The events and hooks of a run, and the dispatcher that calls handlers.

The events are a superset of the six of Gluon's Fit API (`mxnet.gluon.contrib.estimator.event_handler`), so
handlers written for Gluon's Estimator run here unchanged.
"""

from __future__ import annotations

from .dispatcher import EventDispatcher
from .events import (
    AFTER_LAST_BATCH,
    BEFORE_UPDATE,
    CHANGES,
    EVALUATION_EVENTS,
    EVENTS,
    HOOKS,
    MOMENTS,
    TRAINING_EVENTS,
    PassEvents,
    Priority,
)
from .handler_validation import adapt_for_evaluation, checked_handlers, handler_name, unwrapped
from .training_hooks import NO_HOOKS, TrainingHooks

__all__ = [
    "AFTER_LAST_BATCH",
    "BEFORE_UPDATE",
    "CHANGES",
    "EVALUATION_EVENTS",
    "EVENTS",
    "HOOKS",
    "MOMENTS",
    "NO_HOOKS",
    "TRAINING_EVENTS",
    "EventDispatcher",
    "PassEvents",
    "Priority",
    "TrainingHooks",
    "adapt_for_evaluation",
    "checked_handlers",
    "handler_name",
    "unwrapped",
]
