"""A head that classifies every pixel."""

from typing import Any

import mxnet as mx
from mxnet.gluon import nn

__all__ = ["Decoder"]


class Decoder(nn.HybridBlock):
    """Computes scores per pixel from maps of four sizes: each map is enlarged and joined to the next larger.

    It works as U-Net (Ronneberger, Fischer and Brox, 2015) up to a quarter of the image's size, and then
    enlarges the scores by interpolation.

    Parameters
    ----------
    classes : int
        The number of classes, with the background.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.nclass = classes
        self.steps = nn.HybridSequential()
        for width in (64, 48, 32):
            step = nn.HybridSequential()
            step.add(nn.Conv2D(width, 3, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
            self.steps.add(step)
        self.score = nn.Conv2D(classes, 1)
        bilinear = {"weight_initializer": mx.init.Bilinear(), "in_channels": classes, "groups": classes}
        self.enlarge = nn.Conv2DTranspose(classes, 8, 4, 2, use_bias=False, **bilinear)

    def hybrid_forward(self, F: Any, *maps: Any) -> Any:
        """Return scores (N, classes, H, W) for maps of a quarter of that size and smaller."""
        *larger, joined = maps
        for step, features in zip(self.steps, reversed(larger)):
            joined = step(F.concat(F.UpSampling(joined, scale=2, sample_type="nearest"), features, dim=1))
        return self.enlarge(self.score(joined))
