"""Images with all that is known of them, and how a net and a person want to see them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any, Iterable, NamedTuple, Sequence

import cv2
import numpy as np

__all__ = [
    "Pictured",
    "clear_place",
    "displayed",
    "first_samples",
    "gathered",
    "normalized",
    "padded",
    "read_images",
]

# What images of the world have per channel, as gluoncv's own transforms use it.
MEAN = np.array([0.485, 0.456, 0.406], "float32")
DEVIATION = np.array([0.229, 0.224, 0.225], "float32")


class Pictured(NamedTuple):
    """Images and their labels, one row each.

    Attributes
    ----------
    image : array of uint8, shape (N, H, W, 3)
    boxes : array of float32, shape (N, M, 6)
        Left, top, right, bottom in pixels, class, 0 (1 is what VOC calls difficult); rows of -1 fill up.
    mask : array of int32, shape (N, H, W)
        0 for the background, else class + 1.
    count : array of int32, shape (N,)
        How many objects there are.
    """

    image: np.ndarray
    boxes: np.ndarray
    mask: np.ndarray
    count: np.ndarray


def gathered(made: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Pictured:
    """Gather images that were made one by one, each with its boxes (M, 6) and its mask."""
    image, boxes, mask = zip(*made)
    count = np.array([len(rows) for rows in boxes], "int32")
    return Pictured(np.stack(image), padded(list(boxes)), np.stack(mask), count)


def normalized(image: np.ndarray) -> np.ndarray:
    """Return what a net wants of images: (N, H, W, 3) of 0 to 255 becomes float32 (N, 3, H, W) around 0."""
    scaled = np.array(image.transpose(0, 3, 1, 2), "float32", order="C")
    scaled -= 255 * MEAN[:, None, None]  # in place, as there may be many
    scaled /= 255 * DEVIATION[:, None, None]
    return scaled


def displayed(image: np.ndarray) -> np.ndarray:
    """Undo `normalized`: float32 (N, 3, H, W) becomes uint8 (N, H, W, 3)."""
    pixels = (image.transpose(0, 2, 3, 1) * DEVIATION + MEAN) * 255
    return pixels.round().clip(0, 255).astype("uint8")


def first_samples(loader: Iterable[Any], number: int) -> list[tuple[np.ndarray, ...]]:
    """Return a loader's first samples, each a tuple of its slots, however the batches are cut."""
    samples = (sample for batch in loader for sample in zip(*(slot.asnumpy() for slot in batch)))
    return list(islice(samples, number))


def read_images(paths: Sequence[str], size: int) -> np.ndarray:
    """Read image files, uint8 (N, size, size, 3), each stretched or shrunk to that size.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        It is no image that OpenCV can read.
    """
    read = []
    for path in paths:
        if not Path(path).is_file():
            raise FileNotFoundError(f"there is no image {path}")
        image = cv2.imread(str(path), cv2.IMREAD_COLOR)
        if image is None:
            raise ValueError(f"{path} is no image that can be read")
        shrinks = size < min(image.shape[:2])
        image = cv2.resize(image, (size, size), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)
        read.append(image[..., ::-1])  # OpenCV's colours come in the order blue, green, red
    return np.stack(read)


def padded(rows: list[np.ndarray]) -> np.ndarray:
    """Stack arrays (M, 6) of different M into one of float32 (N, max M, 6), filled up with -1."""
    stacked = np.full((len(rows), max(map(len, rows)), 6), -1, "float32")
    for place, row in zip(stacked, rows):
        place[: len(row)] = row
    return stacked


def clear_place(
    random: np.random.RandomState, taken: np.ndarray, height: int, width: int
) -> tuple[int, int] | None:
    """Return the top left corner of a free place of that size, or None if 50 throws find none.

    `taken` is a map of truth values (H, W); the caller marks what is put there.
    """
    for _ in range(50):
        top = random.randint(taken.shape[0] - height + 1)
        left = random.randint(taken.shape[1] - width + 1)
        if not taken[top : top + height, left : left + width].any():
            return top, left
    return None
