"""The few losses that Gluon and its toolkits lack or get wrong; each imports MXNet when it is first used."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .gluon.losses import SegmentationCELoss, SequenceCELoss

__all__ = ["SegmentationCELoss", "SequenceCELoss"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .gluon import losses

    return getattr(losses, name)
