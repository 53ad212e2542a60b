"""The metric that MXNet lacks; it imports MXNet when it is first used."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .gluon.metrics import BinaryAccuracy

__all__ = ["BinaryAccuracy"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .gluon import metrics

    return getattr(metrics, name)
