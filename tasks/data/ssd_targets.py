"""The targets of an SSD: for each anchor, the object that it should detect and the offset to that object."""

from collections.abc import Callable
from typing import Any

import numpy as np
from gluoncv.model_zoo.ssd.target import SSDTargetGenerator
from mxnet import autograd, nd

__all__ = ["anchors_of", "targets"]


def anchors_of(net: Callable[[Any], Any], size: int, context: Any) -> Any:
    """Return the anchors (1, A, 4) of an SSD for images of `size`, computed by one forward pass.

    The pass also determines the shapes of all parameters. `net` must not be hybridized yet, because a
    hybridized net keeps the mode of its first pass.
    """
    with autograd.train_mode():  # in this mode an SSD returns its anchors
        return net(nd.zeros((1, 3, size, size), ctx=context))[2]


def targets(anchors: Any, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Match boxes to anchors.

    Parameters
    ----------
    anchors : NDArray, shape (1, A, 4)
        Centre and size.
    boxes : array, shape (N, M, 6)
        Corners, class, difficult; rows of -1 are padding.

    Returns
    -------
    cls_targets : array of float32, shape (N, A)
        0 for the background, else class + 1.
    box_targets : array of float32, shape (N, A, 4)
    """
    generator = SSDTargetGenerator(negative_mining_ratio=-1)  # the loss mines negatives
    anchors = anchors.as_in_context(nd.zeros(1).context)
    pairs = []
    for start in range(0, len(boxes), 64):
        batch = nd.array(boxes[start : start + 64])
        pairs.append(generator(anchors, None, batch[:, :, :4], batch[:, :, 4:5])[:2])
    cls_targets, box_targets = (np.concatenate([part.asnumpy() for part in parts]) for parts in zip(*pairs))
    return cls_targets, box_targets
