"""Nets and batches that keep a GPU busy; on a CPU, a step takes seconds or minutes."""

from functools import cache
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.gluon.model_zoo import vision

from .data import shape_batches
from .detection import Detector
from .single import PIXELS, Single, fcn
from .translation import Translator

__all__ = ["LARGE"]

CLASSES = 1000


@cache
def photo_batches(count: int = 3, size: int = 128, side: int = 224) -> list[tuple[Any, Any]]:
    """Return noise (128, 3, 224, 224) with classes (128,), int32: only the time is measured."""
    random = np.random.RandomState(0)
    return [
        (
            mx.nd.array(random.standard_normal((size, 3, side, side)).astype("float32")),
            mx.nd.array(random.randint(CLASSES, size=size), dtype="int32"),
        )
        for _ in range(count)
    ]


LARGE = (
    Single("ResNet18, 224 pixels", lambda: vision.resnet18_v1(classes=CLASSES), photo_batches),
    Single("FCN, 512 pixels", fcn, lambda: shape_batches(3, side=512), *PIXELS),
    Detector("SSD, 256 pixels", ("train_count=192", "size=256", "batch_size=64")),
    Translator(
        "NMT, 1024 units",
        ("train_count=6144", "units=1024"),
        batch=2048,
        optimizer=("adam", {"learning_rate": 3e-4}),
    ),
)
