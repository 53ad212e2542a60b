"""Discs, squares and triangles of any colour on a noisy background; they may overlap a little."""

import numpy as np

from .images import LabelledImages, gather

__all__ = ["CLASSES", "shapes"]

CLASSES = ("disc", "square", "triangle")
MOST = 3  # maximum number of shapes in an image


def shapes(number: int, size: int = 64, held_out: bool = False) -> LabelledImages:
    """Draw images of shapes; the same number gives the same images.

    Parameters
    ----------
    number : int
        The number of images.
    size : int
        The side of an image in pixels.
    held_out : bool
        Whether to draw the images for testing.
    """
    random = np.random.RandomState(3 + held_out)
    return gather(_image(random, size) for _ in range(number))


def _image(random: np.random.RandomState, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return image (size, size, 3), boxes (M, 6) and mask (size, size)."""
    ground = random.randint(0, 256, 3)
    canvas = ground + random.normal(0, 8, (size, size, 3))
    mask = np.zeros((size, size), "int32")
    boxes = []
    for _ in range(random.randint(1, MOST + 1)):
        kind, radius = random.randint(len(CLASSES)), random.uniform(0.15, 0.26) * size
        centre = random.uniform(radius, size - radius, 2)
        inside = _inside(kind, *centre, radius, size)
        if mask[inside].any() and (mask[inside] > 0).mean() > 0.15:
            continue  # it would hide another shape
        mask[inside] = kind + 1
        canvas[inside] = _far_from(random, ground) + random.normal(0, 8, (int(inside.sum()), 3))
        rows, columns = np.flatnonzero(inside.any(axis=1)), np.flatnonzero(inside.any(axis=0))
        boxes.append([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1, kind, 0])
    return canvas.round().clip(0, 255).astype("uint8"), np.array(boxes, "float32"), mask


def _inside(kind: int, x: float, y: float, radius: float, size: int) -> np.ndarray:
    """Return a boolean map (size, size) of the pixels inside the shape."""
    down, across = np.mgrid[:size, :size] + 0.5 - np.array([y, x]).reshape(2, 1, 1)
    if CLASSES[kind] == "disc":
        return down**2 + across**2 <= radius**2
    if CLASSES[kind] == "square":
        return np.maximum(abs(down), abs(across)) <= 0.85 * radius
    return (abs(down) <= radius) & (2 * abs(across) <= down + radius)  # a triangle with its tip at the top


def _far_from(random: np.random.RandomState, colour: np.ndarray) -> np.ndarray:
    """Return a colour that differs clearly from another one."""
    while True:
        other = random.randint(0, 256, 3)
        if abs(other - colour).sum() > 150:
            return other
