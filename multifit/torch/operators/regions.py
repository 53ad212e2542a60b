"""Regions of maps, for detectors with two stages."""

from __future__ import annotations

from typing import Literal

import torch

from ..attributes import Ints, Tensor


def roi_align(
    maps: Tensor,
    rois: Tensor,
    *,
    pooled_size: Ints,
    spatial_scale: float,
    sample_ratio: Literal[1, 2, 3, 4],
    position_sensitive: Literal[False, 0] = False,
    aligned: bool = False,
) -> Tensor:
    """Return regions in one size; each pixel is the mean of `sample_ratio`² interpolated points.

    `rois` are (index in the batch, x, y, x, y), without gradient; a region with a negative index is 0.
    """
    index, corners = rois[:, 0].detach(), rois[:, 1:].detach() * spatial_scale
    corners = corners - 0.5 if aligned else corners
    low, size = corners[:, :2], corners[:, 2:] - corners[:, :2]
    size = size if aligned else size.clamp(min=1)
    rows, columns = pooled_size
    y = places(low[:, 1], size[:, 1], rows, sample_ratio)
    x = places(low[:, 0], size[:, 0], columns, sample_ratio)
    y_low, y_high, y_part, y_inside = neighbours(y, maps.shape[2])
    x_low, x_high, x_part, x_inside = neighbours(x, maps.shape[3])
    pixels = maps.permute(0, 2, 3, 1)  # channels last: (regions, rows, columns, channels) are looked up
    batch = index.long().clamp(min=0)[:, None, None]

    def at(row: Tensor, column: Tensor, weight_y: Tensor, weight_x: Tensor) -> Tensor:
        weight = (weight_y * y_inside)[:, :, None] * (weight_x * x_inside)[:, None, :]
        return pixels[batch, row[:, :, None], column[:, None, :]] * weight.unsqueeze(-1)

    values = (
        at(y_low, x_low, 1 - y_part, 1 - x_part)
        + at(y_low, x_high, 1 - y_part, x_part)
        + at(y_high, x_low, y_part, 1 - x_part)
        + at(y_high, x_high, y_part, x_part)
    )
    values = values.reshape(len(rois), rows, sample_ratio, columns, sample_ratio, -1).mean((2, 4))
    return (values * (index >= 0)[:, None, None, None]).permute(0, 3, 1, 2)


def places(low: Tensor, size: Tensor, count: int, samples: int) -> Tensor:
    """Return the positions of points along one axis: (regions, count * samples)."""
    steps = torch.arange(count * samples, dtype=low.dtype, device=low.device)
    return low[:, None] + (steps + 0.5) / samples * (size[:, None] / count)


def neighbours(place: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the pixels before and after places, the share of the second, and which places are on the map."""
    inside = ((place >= -1) & (place <= size)).to(place.dtype)
    place = place.clamp(0, size - 1)
    low = place.floor()
    return low.long(), (low.long() + 1).clamp(max=size - 1), place - low, inside


OPERATORS = {"_contrib_ROIAlign": roi_align}
