"""Scenes of one to four handwritten digits, resized and tinted, on a dark canvas, without overlap.

The digits are scikit-learn's, 8 by 8 pixels. Training scenes show the first 1437, test scenes the other 360.
"""

import cv2
import numpy as np
from sklearn.datasets import load_digits

from .images import LabelledImages, clear_place, gather

__all__ = ["CLASSES", "MOST", "scenes"]

CLASSES = tuple("0123456789")
MOST = 4  # maximum number of digits in a scene
INK = 60  # of 255: pixels above it belong to the digit
SIDES = (21, 64)  # of a digit in a scene of 128 pixels


def scenes(number: int, size: int = 128, held_out: bool = False) -> LabelledImages:
    """Draw scenes; the same number gives the same scenes.

    Parameters
    ----------
    number : int
        The number of scenes.
    size : int
        The side of a scene in pixels.
    held_out : bool
        Whether to show the digits for testing.
    """
    pixels, classes = load_digits(return_X_y=True)
    pool = np.arange(1437, len(classes)) if held_out else np.arange(1437)
    random = np.random.RandomState(1 + held_out)
    digits = (pixels.reshape(-1, 8, 8) * (255 / 16)).astype("float32")
    return gather(_scene(random, digits, classes, pool, size) for _ in range(number))


def _scene(
    random: np.random.RandomState, digits: np.ndarray, classes: np.ndarray, pool: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return image (size, size, 3), boxes (M, 6) and mask (size, size)."""
    canvas = np.ones((size, size, 3), "float32") * random.randint(0, 64, 3)
    mask = np.zeros((size, size), "int32")
    taken = np.zeros((size, size), bool)
    boxes = []
    for which in random.choice(pool, random.randint(1, MOST + 1), replace=False):
        side = int(random.randint(*SIDES) * size / 128)
        corner = clear_place(random, taken, side, side)
        if corner is None:
            continue
        here = tuple(slice(start, start + side) for start in corner)
        taken[here] = True
        digit = cv2.resize(digits[which], (side, side), interpolation=cv2.INTER_CUBIC).clip(0, 255)
        alpha = digit[..., None] / 255
        canvas[here] = canvas[here] * (1 - alpha) + alpha * random.randint(130, 256, 3)
        ink = digit > INK
        mask[here][ink] = classes[which] + 1
        boxes.append(_box(ink, corner, classes[which]))
    return canvas.round().astype("uint8"), np.array(boxes, "float32"), mask


def _box(ink: np.ndarray, corner: tuple[int, int], kind: int) -> list[float]:
    rows, columns = np.flatnonzero(ink.any(axis=1)) + corner[0], np.flatnonzero(ink.any(axis=0)) + corner[1]
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1, kind, 0]
