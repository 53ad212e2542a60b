"""What an SSD is trained on: for each of its anchors, which object it should find, and how far away."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
from gluoncv.model_zoo.ssd.target import SSDTargetGenerator
from mxnet import autograd, nd

__all__ = ["anchors_of", "targets"]


def anchors_of(net: Callable[[Any], Any], size: int, context: Any) -> Any:
    """Return the anchors (1, A, 4) of an SSD for images of `size`, by one forward pass.

    That pass also gives all its parameters their shapes. `net` must not be hybridized yet: the mode of the
    first pass would be its mode for good.
    """
    with autograd.train_mode():  # an SSD returns other things when it is not trained
        return net(nd.zeros((1, 3, size, size), ctx=context))[2]


def targets(anchors: Any, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Match boxes to anchors, once for all epochs.

    Parameters
    ----------
    anchors : NDArray, shape (1, A, 4)
        Centre and size.
    boxes : array, shape (N, M, 6)
        Corners, class, difficult; rows of -1 match nothing.

    Returns
    -------
    cls_targets : array of float32, shape (N, A)
        0 for background, else class + 1.
    box_targets : array of float32, shape (N, A, 4)
    """
    generator = SSDTargetGenerator(negative_mining_ratio=-1)  # the loss does the mining
    anchors = anchors.as_in_context(nd.zeros(1).context)
    found = []
    for start in range(0, len(boxes), 64):
        some = nd.array(boxes[start : start + 64])
        found.append(generator(anchors, None, some[:, :, :4], some[:, :, 4:5])[:2])
    cls_targets, box_targets = (np.concatenate([one.asnumpy() for one in all_]) for all_ in zip(*found))
    return cls_targets, box_targets
