"""Nets with two tasks on one body, to compare methods of balancing."""

from dataclasses import dataclass
from typing import Any

from mxnet.gluon import nn

from .data import digit_batches
from .heads import Heads, HeadsNet

__all__ = ["BALANCED", "Balanced"]

SIDES = {"MLP": 8, "conv": 16}


class ConvHeads(HeadsNet):
    """Three convolutions, the mean of each map, and a dense head for each task."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__(widths)
        self.body = nn.HybridSequential()
        for channels in (16, 32, 32):
            self.body.add(nn.Conv2D(channels, 3, padding=1, activation="relu"))
        # the backward pass of GlobalAvgPool2D would take MXNet most of a step
        self.body.add(nn.HybridLambda(lambda F, maps: F.mean(maps, axis=(2, 3))))


@dataclass(frozen=True)
class Balanced(Heads):
    """Digit and parity, from a body of dense layers or of convolutions."""

    kind: str = "MLP"

    @property
    def name(self) -> str:
        """The kind of body."""
        return self.kind

    def make(self) -> Any:
        """Return the net."""
        return (ConvHeads if self.kind == "conv" else HeadsNet)([10, 1])

    def batches(self) -> list[tuple[Any, ...]]:
        """Return images with both labels."""
        pairs = digit_batches(SIDES[self.kind])
        return [(image, kind, (kind % 2).astype("float32").reshape((-1, 1))) for image, kind in pairs]


BALANCED = (Balanced(2, kind="MLP"), Balanced(2, kind="conv"))
