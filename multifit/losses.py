"""The few losses that Gluon and its toolkits lack or get wrong."""

from .gluon.losses import SegmentationCELoss, SequenceCELoss

__all__ = ["SegmentationCELoss", "SequenceCELoss"]
