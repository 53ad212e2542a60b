"""Nets with several tasks on one body, to compare methods of balancing."""

from dataclasses import dataclass
from typing import Any

from mxnet.gluon import nn

from .data import digit_batches
from .heads import Heads, HeadsNet

__all__ = ["BALANCED", "Balanced"]

SHAPES = {"MLP": (8, 64, 23), "conv": (16, 32, 4)}  # the images' side, samples a batch, and batches


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
    """Ten classes for each task, from a body of dense layers or of convolutions."""

    kind: str = "MLP"

    @property
    def name(self) -> str:
        """The kind of body, and the number of tasks."""
        return f"{self.kind}, {self.count} tasks"

    @property
    def binary(self) -> list[bool]:
        """Whether each head is binary: none is."""
        return [False] * self.count

    def make(self) -> Any:
        """Return the net."""
        return (ConvHeads if self.kind == "conv" else HeadsNet)([10] * self.count)

    def batches(self) -> list[tuple[Any, ...]]:
        """Return images, and for each task the digits' classes under other numbers."""
        side, size, count = SHAPES[self.kind]
        count = max(2, count * 5 // max(5, self.count))  # steps with many tasks take long
        pairs = [(image[:size], kind[:size]) for image, kind in digit_batches(side)[:count]]
        return [(image, *((kind + shift) % 10 for shift in range(self.count))) for image, kind in pairs]


BALANCED = tuple(Balanced(count, kind=kind) for kind in SHAPES for count in (2, 5, 20))
