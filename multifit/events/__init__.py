"""The moments of a run, and who is called at them.

The moments are a superset of the six of Gluon's Fit API (`mxnet.gluon.contrib.estimator.event_handler`), so
that a handler written for Gluon's Estimator runs here unchanged.
"""

from __future__ import annotations

from .dispatch import Events, HandlerError
from .echo import echoing
from .flow import Flow
from .moments import CHANGES, MOMENTS, Priority
from .running import Running
from .vetting import name_of, vetted

__all__ = [
    "CHANGES",
    "MOMENTS",
    "Events",
    "Flow",
    "HandlerError",
    "Priority",
    "Running",
    "echoing",
    "name_of",
    "vetted",
]
