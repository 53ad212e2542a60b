"""Drawings of images with boxes, masks and titles."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gluoncv.utils.viz import plot_bbox
from matplotlib import colormaps

__all__ = ["confident", "draw_boxes", "draw_mask", "named", "title"]

COLOURS = {number: colormaps["tab10"](number % 10) for number in range(100)}


def title(axes: Any, text: str, wrong: bool = False) -> None:
    """Write a line above a picture, in red if the prediction is wrong, and remove the axes."""
    axes.set_axis_off()
    axes.set_title(text, fontsize=8, color="tab:red" if wrong else "black")


def draw_boxes(
    axes: Any, image: np.ndarray, boxes: np.ndarray, ids: np.ndarray, classes: Sequence[str]
) -> None:
    """Draw an image (H, W, 3) with a named box for each row of `boxes` (M, 4) and `ids` (M,)."""
    plot_bbox(
        image,
        boxes,
        labels=ids,
        class_names=classes,
        colors=dict(COLOURS),
        ax=axes,
        linewidth=1.5,
        fontsize=7,
    )
    for label in axes.texts:  # gluoncv writes the name above the box, which may be outside the picture
        left, top = label.get_position()
        label.set_position((left, max(top, 8)))


def draw_mask(axes: Any, mask: np.ndarray) -> None:
    """Draw a mask (H, W): the background black, ignored pixels (-1) white, each class in its colour."""
    palette = np.array([(1, 1, 1, 1), (0, 0, 0, 1), *COLOURS.values()])
    axes.imshow(palette[mask.astype(int) + 1])


def confident(
    outputs: Mapping[str, np.ndarray], i: int, prefix: str = "", threshold: float = 0.5
) -> tuple[np.ndarray, np.ndarray]:
    """Return the boxes (M, 4) and ids (M,) of image `i` whose scores reach the threshold."""
    chosen = outputs[f"{prefix}scores"][i, :, 0] >= threshold
    return outputs[f"{prefix}boxes"][i, chosen], outputs[f"{prefix}ids"][i, chosen, 0]


def named(ids: Iterable[float], classes: Sequence[str]) -> str:
    """Return the sorted names of the objects; negative ids are left out."""
    return " ".join(sorted(classes[int(number)] for number in ids if number >= 0)) or "nothing"
