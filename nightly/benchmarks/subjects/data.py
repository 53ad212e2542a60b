"""Batches that all contenders share."""

from functools import cache
from typing import Any

import mxnet as mx
import numpy as np

from .subject import task

__all__ = ["BATCH", "digit_batches", "digit_batches_for", "shape_batches"]

BATCH = 64
BATCHES = 23  # of scikit-learn's 1797 digits, as many as there are to train on


@cache
def digit_batches(side: int = 8, count: int = BATCHES) -> list[tuple[Any, Any]]:
    """Return real digits (64, 1, side, side) in batches of 64, with their classes (64,), int32."""
    task("classification")  # puts tasks/ on the path
    from data.mnist import digits, resized

    image, kind = map(np.concatenate, zip(*digits()))
    image = resized(image, side)
    return [
        (mx.nd.array(image[i : i + BATCH]), mx.nd.array(kind[i : i + BATCH], dtype="int32"))
        for i in range(0, count * BATCH, BATCH)
    ]


@cache
def shape_batches(count: int = 15, size: int = 16, side: int = 64) -> list[tuple[Any, Any]]:
    """Return images of shapes (16, 3, side, side), and masks (16, side, side), int32: 15 are an epoch."""
    segmentation = task("segmentation")
    made = segmentation.shapes.shapes(count * size, side)
    image = segmentation.normalize(made.image)
    return [
        (mx.nd.array(image[i : i + size]), mx.nd.array(made.mask[i : i + size], dtype="int32"))
        for i in range(0, count * size, size)
    ]


@cache
def digit_batches_for(count: int) -> list[tuple[Any, ...]]:
    """Return digits with the labels of a number of heads; of two, the second is whether a digit is odd."""
    if count == 2:
        return [(i, k, mx.nd.array(k.asnumpy() % 2).reshape((-1, 1))) for i, k in digit_batches()]
    labels = [[(kind + shift) % 10 for shift in range(count)] for _, kind in digit_batches()]
    return [(image, *kinds) for (image, _), kinds in zip(digit_batches(), labels)]
