"""Rows of small images on one sheet."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

__all__ = ["contact_sheet"]


def contact_sheet(rows: Sequence[Sequence[np.ndarray]], title: str) -> Figure:
    """Draw rows of images, (H, W, 3) from 0 to 1."""
    columns = max(map(len, rows))
    sheet = Figure(figsize=(columns, len(rows) + 0.4), layout="constrained")
    sheet.suptitle(title, fontsize=10)
    for row, images in enumerate(rows):
        for column, image in enumerate(images):
            axes = sheet.add_subplot(len(rows), columns, row * columns + column + 1)
            axes.imshow(image.clip(0, 1))
            axes.set_axis_off()
    return sheet
