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
    sample_ratio: int = -1,
    position_sensitive: Literal[False, 0] = False,
    aligned: bool = False,
) -> Tensor:
    """Return regions in one size; each pixel is the mean of `sample_ratio`² interpolated points.

    By default, points are at most a pixel of the map apart. `rois` are (index in the batch, x, y, x, y),
    without gradient; a region with a negative index is 0.
    """
    index, corners = rois[:, 0].detach(), rois[:, 1:].detach() * spatial_scale
    corners = corners - 0.5 if aligned else corners
    low, size = corners[:, :2], corners[:, 2:] - corners[:, :2]
    size = size if aligned else size.clamp(min=1)
    rows, columns = pooled_size
    if sample_ratio <= 0:
        weight_y = mean_weights(low[:, 1], size[:, 1], rows, maps.shape[2])
        weight_x = mean_weights(low[:, 0], size[:, 0], columns, maps.shape[3])
        return weighted(maps, index, weight_y, weight_x)
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
    values = values.reshape(rois.shape[0], rows, sample_ratio, columns, sample_ratio, -1).mean((2, 4))
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


def mean_weights(low: Tensor, size: Tensor, count: int, pixels: int) -> Tensor:
    """Return the weights of an axis's pixels in the mean of points along it: (regions, count, pixels).

    Each region has as many points as it needs. A tensor has the same number for all: those that can be on
    the map, from the first one on, as they are more than half a pixel apart.
    """
    window = (size / count)[:, None, None]
    samples = window.ceil().clamp(min=1)
    start = low[:, None, None] + torch.arange(count, dtype=low.dtype, device=low.device)[:, None] * window
    step = window / samples
    first = ((-1 - start) / step - 0.5).floor().clamp(min=0)
    steps = first + torch.arange(2 * pixels + 4, dtype=low.dtype, device=low.device)
    before, after, part, inside = neighbours(start + (steps + 0.5) * step, pixels)
    share = inside * (steps < samples) / samples
    weights = low.new_zeros(low.shape[0], count, pixels)
    return weights.scatter_add(2, before, (1 - part) * share).scatter_add(2, after, part * share)


def weighted(maps: Tensor, index: Tensor, weight_y: Tensor, weight_x: Tensor) -> Tensor:
    """Return sums of pixels, weighted by their rows and columns, of the maps at the indices."""
    regions, rows, height = weight_y.shape
    batch, channels, _, width = maps.shape
    is_of = index[:, None] == torch.arange(batch, dtype=index.dtype, device=index.device)
    weight = weight_y[:, :, None] * is_of[:, None, :, None]  # a product, as each region's own map is large
    lines = weight.reshape(regions * rows, -1) @ maps.permute(0, 2, 3, 1).reshape(batch * height, -1)
    return torch.einsum("rjw,riwc->rcij", weight_x, lines.reshape(regions, rows, width, channels))


OPERATORS = {"_contrib_ROIAlign": roi_align}
