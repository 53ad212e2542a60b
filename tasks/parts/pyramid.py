"""A small body that turns an image into feature maps of four sizes."""

from typing import Any

from mxnet.gluon import nn

__all__ = ["Pyramid"]


class Pyramid(nn.HybridBlock):
    """Eight convolutions in five stages, each of which halves the image.

    Images (N, 3, H, W) become four maps: (N, 32, H/4, W/4), (N, 48, H/8, W/8), (N, 64, H/16, W/16) and
    (N, 96, H/32, W/32).
    """

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.HybridSequential()
        for widths in ((16,), (32,), (48, 48), (64, 64), (96, 96)):
            self.stages.add(_stage(widths))

    def hybrid_forward(self, F: Any, image: Any) -> list[Any]:
        """Return the maps, the largest first."""
        maps = [image]
        for stage in self.stages:
            maps.append(stage(maps[-1]))
        return maps[2:]


def _stage(widths: tuple[int, ...]) -> nn.HybridSequential:
    stage = nn.HybridSequential()
    for width in widths:
        stage.add(nn.Conv2D(width, 3, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
    stage.add(nn.MaxPool2D())
    return stage
