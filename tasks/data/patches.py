"""Patches of two photographs.

The photographs, a temple and a flower, are scikit-learn's. Patches of their left halves are for training,
patches of their right halves for testing.
"""

from typing import Any

import cv2
import numpy as np
from mxnet import nd
from mxnet.gluon.data import ArrayDataset
from mxnet.gluon.data.vision import transforms
from sklearn.datasets import load_sample_images

__all__ = ["KINDS", "augmentation", "displayed", "patches", "plain", "read_photograph"]

KINDS = ("temple", "flower")
MEAN, DEVIATION = (0.4, 0.4, 0.35), (0.25, 0.25, 0.25)  # of the photographs' channels, rounded


def patches(number: int, side: int, held_out: bool = False) -> ArrayDataset:
    """Cut patches at random places; the same number gives the same patches.

    Parameters
    ----------
    number : int
        The number of patches, half of them from each photograph.
    side : int
        The side of a patch in pixels. Patches are cut at three times that size and then shrunk.
    held_out : bool
        Whether to cut them from the halves for testing.

    Returns
    -------
    ArrayDataset
        Patches (side, side, 3), uint8, and kinds, int32.
    """
    random = np.random.RandomState(1 + held_out)
    photographs = load_sample_images().images
    pixels = [_patch(random, photographs[kind % 2], side, held_out) for kind in range(number)]
    return ArrayDataset(nd.array(np.stack(pixels), dtype="uint8"), np.arange(number, dtype="int32") % 2)


def _patch(random: np.random.RandomState, photograph: np.ndarray, side: int, held_out: bool) -> np.ndarray:
    height, width = photograph.shape[0], photograph.shape[1] // 2
    cut = 3 * side
    top, left = random.randint(height - cut + 1), random.randint(width - cut + 1) + held_out * width
    patch = photograph[top : top + cut, left : left + cut]
    return cv2.resize(patch, (side, side), interpolation=cv2.INTER_AREA)


def plain() -> Any:
    """Return a transform from a patch (H, W, 3) of 0 to 255 to the net's input (3, H, W) around 0."""
    return transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, DEVIATION)])


def augmentation(side: int) -> Any:
    """Return the transform `plain` after random crops, mirroring, and changes of colour and light."""
    changes = [
        transforms.RandomResizedCrop(side, scale=(0.3, 1.0)),
        transforms.RandomFlipLeftRight(),
        transforms.RandomColorJitter(brightness=0.4, contrast=0.4, saturation=0.4),
        transforms.RandomLighting(0.1),
    ]
    return transforms.Compose([*changes, *plain()])


def displayed(image: Any) -> np.ndarray:
    """Undo `plain`: (3, H, W) around 0 becomes (H, W, 3) from 0 to 1."""
    return (image.asnumpy().transpose(1, 2, 0) * DEVIATION + MEAN).clip(0, 1)


def read_photograph(path: str, side: int) -> Any:
    """Read the central square of an image file as a patch (side, side, 3), uint8.

    Raises
    ------
    FileNotFoundError
        There is no readable image at `path`.
    """
    pixels = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if pixels is None:
        raise FileNotFoundError(f"there is no image {path}")
    short = min(pixels.shape[:2])
    top, left = (pixels.shape[0] - short) // 2, (pixels.shape[1] - short) // 2
    square = cv2.cvtColor(pixels[top : top + short, left : left + short], cv2.COLOR_BGR2RGB)
    return nd.array(cv2.resize(square, (side, side), interpolation=cv2.INTER_AREA), dtype="uint8")
