"""The events and hooks of a run, the base class of handlers, and the dispatcher that calls them.

Events and their arguments are a superset of those of Gluon's Fit API
(`mxnet.gluon.contrib.estimator.event_handler`).
"""

from .dispatcher import NO_HOOKS, EventDispatcher, TrainingHooks
from .handler import (
    AFTER_LAST_BATCH,
    EVALUATION_EVENTS,
    EVENTS,
    HOOKS,
    TRAINING_EVENTS,
    Handler,
    PassEvents,
    Priority,
    attribute,
    handler_name,
    implements,
    unwrapped,
)
from .validation import checked_handlers

__all__ = [
    "AFTER_LAST_BATCH",
    "EVALUATION_EVENTS",
    "EVENTS",
    "HOOKS",
    "NO_HOOKS",
    "TRAINING_EVENTS",
    "EventDispatcher",
    "Handler",
    "PassEvents",
    "Priority",
    "TrainingHooks",
    "attribute",
    "checked_handlers",
    "handler_name",
    "implements",
    "unwrapped",
]
