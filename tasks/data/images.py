"""Images with boxes, masks and counts, and their conversion for nets and for drawings."""

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

__all__ = [
    "LabelledImages",
    "clear_place",
    "displayed",
    "first_samples",
    "gather",
    "normalize",
    "pad",
    "read_images",
]

# Per channel, as in gluoncv's transforms: the statistics of ImageNet.
MEAN = np.array([0.485, 0.456, 0.406], "float32")
DEVIATION = np.array([0.229, 0.224, 0.225], "float32")


class LabelledImages(NamedTuple):
    """Images and their labels, one row each.

    Attributes
    ----------
    image : array of uint8, shape (N, H, W, 3)
    boxes : array of float32, shape (N, M, 6)
        Left, top, right, bottom in pixels, class, and 0 (1 is VOC's "difficult"); rows of -1 are padding.
    mask : array of int32, shape (N, H, W)
        0 for the background, else class + 1.
    count : array of int32, shape (N,)
        The number of objects.
    """

    image: np.ndarray
    boxes: np.ndarray
    mask: np.ndarray
    count: np.ndarray


def gather(images: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> LabelledImages:
    """Stack images, each with its boxes (M, 6) and its mask."""
    image, boxes, mask = zip(*images)
    count = np.array([len(rows) for rows in boxes], "int32")
    return LabelledImages(np.stack(image), pad(list(boxes)), np.stack(mask), count)


def normalize(image: np.ndarray) -> np.ndarray:
    """Return images (N, H, W, 3) of 0 to 255 as the input of a net: float32 (N, 3, H, W) around 0."""
    scaled = np.array(image.transpose(0, 3, 1, 2), "float32", order="C")
    scaled -= 255 * MEAN[:, None, None]  # in place, to save memory
    scaled /= 255 * DEVIATION[:, None, None]
    return scaled


def displayed(image: np.ndarray) -> np.ndarray:
    """Undo `normalize`: float32 (N, 3, H, W) becomes uint8 (N, H, W, 3)."""
    pixels = (image.transpose(0, 2, 3, 1) * DEVIATION + MEAN) * 255
    return pixels.round().clip(0, 255).astype("uint8")


def first_samples(loader: Iterable[Any], number: int) -> list[tuple[np.ndarray, ...]]:
    """Return a loader's first samples, each a tuple of its slots, whatever the batch size."""
    samples = (sample for batch in loader for sample in zip(*(slot.asnumpy() for slot in batch)))
    return list(islice(samples, number))


def read_images(paths: Sequence[str], size: int) -> np.ndarray:
    """Read image files as uint8 (N, size, size, 3), each resized to that size.

    Raises
    ------
    FileNotFoundError
        A file does not exist.
    ValueError
        A file is not an image that OpenCV can read.
    """
    images = []
    for path in paths:
        if not Path(path).is_file():
            raise FileNotFoundError(f"there is no image {path}")
        image = cv2.imread(str(path), cv2.IMREAD_COLOR)
        if image is None:
            raise ValueError(f"{path} is not an image that can be read")
        shrinks = size < min(image.shape[:2])
        image = cv2.resize(image, (size, size), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)
        images.append(image[..., ::-1])  # OpenCV has the channels in the order blue, green, red
    return np.stack(images)


def pad(rows: list[np.ndarray]) -> np.ndarray:
    """Stack arrays (M, 6) of different M as float32 (N, max M, 6), padded with -1."""
    stacked = np.full((len(rows), max(map(len, rows)), 6), -1, "float32")
    for place, row in zip(stacked, rows):
        place[: len(row)] = row
    return stacked


def clear_place(
    random: np.random.RandomState, taken: np.ndarray, height: int, width: int
) -> tuple[int, int] | None:
    """Return the top left corner of a random free place of that size, or None after 50 failed attempts.

    `taken` is a boolean map (H, W); the caller marks the place as taken.
    """
    for _ in range(50):
        top = random.randint(taken.shape[0] - height + 1)
        left = random.randint(taken.shape[1] - width + 1)
        if not taken[top : top + height, left : left + width].any():
            return top, left
    return None
