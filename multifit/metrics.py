"""The metric that MXNet lacks."""

from .gluon.metrics import BinaryAccuracy

__all__ = ["BinaryAccuracy"]
