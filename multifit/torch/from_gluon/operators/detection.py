"""Operators on boxes and regions of pictures."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch

from ..attributes import Ints, Tensor

# ---- Operators on boxes: (x, y, x, y) of two corners, or (x, y, w, h) with a center


Format = Literal["corner", "center"]


def as_corners(boxes: Tensor, format: str) -> Tensor:
    """Return boxes by their corners."""
    if format == "corner":
        return boxes
    center, size = boxes[..., :2], boxes[..., 2:]
    return torch.cat([center - size / 2, center + size / 2], -1)


def as_centers(boxes: Tensor, format: str) -> Tensor:
    """Return boxes by center and size."""
    if format == "center":
        return boxes
    low, high = boxes[..., :2], boxes[..., 2:]
    return torch.cat([low + (high - low) * 0.5, high - low], -1)


def intersection_over_union(x: Tensor, y: Tensor) -> Tensor:
    """Return the overlaps (..., N, M) of boxes (..., N, 4) with boxes (..., M, 4), given by corners."""
    low = torch.maximum(x[..., :, None, :2], y[..., None, :, :2])
    high = torch.minimum(x[..., :, None, 2:], y[..., None, :, 2:])
    both = (high - low).clamp(min=0).prod(-1)
    own, others = ((each[..., 2:] - each[..., :2]).clamp(min=0).prod(-1) for each in (x, y))
    either = own[..., :, None] + others[..., None, :] - both
    return torch.where(either > 0, both / either, 0)


def box_iou(x: Tensor, y: Tensor, *, format: Format = "corner") -> Tensor:
    """Return the overlap of each box of `x` with each box of `y`."""
    boxes = [as_corners(each.detach(), format).reshape(-1, 4) for each in (x, y)]
    return intersection_over_union(*boxes).reshape(*x.shape[:-1], *y.shape[:-1])


def box_nms(
    x: Tensor,
    *,
    overlap_thresh: float = 0.5,
    valid_thresh: float = 0.0,
    topk: int = -1,
    coord_start: int = 2,
    score_index: int = 1,
    id_index: int = -1,
    force_suppress: bool = False,
    in_format: Literal["corner"] = "corner",
    out_format: Literal["corner"] = "corner",
) -> Tensor:
    """Return the rows whose boxes do not overlap a box with a better score, by score; then rows of -1."""
    rows = x.reshape(-1, *x.shape[-2:])
    score = rows[..., score_index].detach()
    valid = score > valid_thresh
    order = score.masked_fill(~valid, -math.inf).argsort(dim=1, descending=True, stable=True)
    rows, valid = rows.gather(1, order.unsqueeze(-1).expand(rows.shape)), valid.gather(1, order)
    count = topk if 0 < topk < rows.shape[1] else rows.shape[1]
    best = rows[:, :count]
    boxes = best[..., coord_start : coord_start + 4].detach()
    suppresses = (intersection_over_union(boxes, boxes) > overlap_thresh).triu(1)
    if id_index >= 0 and not force_suppress:
        suppresses &= best[..., id_index].unsqueeze(2) == best[..., id_index].unsqueeze(1)
    kept = not_suppressed(valid[:, :count], suppresses)
    front = (~kept).to(torch.int8).argsort(dim=1, stable=True).unsqueeze(-1).expand(best.shape)
    result = torch.full_like(rows, -1)
    result[:, :count] = best.masked_fill(~kept.unsqueeze(-1), -1).gather(1, front)
    return result.reshape(x.shape)


def not_suppressed(valid: Tensor, suppresses: Tensor) -> Tensor:
    """Return which rows are kept, (N, M): those that no kept row before them suppresses.

    `suppresses` (N, M, M) says which row suppresses which. Each pass of the loop decides at least one more
    row, from the first on; in practice it decides nearly all.
    """
    kept = valid
    while True:
        again = valid & ~(kept.unsqueeze(2) & suppresses).any(1)
        if torch.equal(again, kept):
            return kept
        kept = again


def box_decode(
    x: Tensor,
    anchors: Tensor,
    *,
    std0: float = 1.0,
    std1: float = 1.0,
    std2: float = 1.0,
    std3: float = 1.0,
    clip: float = -1.0,
    format: Format = "center",
) -> Tensor:
    """Return boxes by their corners, from predicted offsets from anchors."""
    x, anchors = x.detach(), as_centers(anchors.detach(), format)
    x = torch.stack([part * std for part, std in zip(x.unbind(-1), (std0, std1, std2, std3))], -1)
    size = x[..., 2:].clamp(max=clip) if clip > 0 else x[..., 2:]
    half = size.exp() * anchors[..., 2:] * 0.5
    center = x[..., :2] * anchors[..., 2:] + anchors[..., :2]
    return torch.cat([center - half, center + half], -1)


# ---- Regions of maps, for detectors with two stages


def roi_align(
    maps: Tensor,
    rois: Tensor,
    *,
    pooled_size: Ints,
    spatial_scale: float,
    sample_ratio: Literal[1, 2, 3, 4, 5, 6, 7, 8],
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


OPERATORS: dict[str, Callable[..., Any]] = {
    "_contrib_box_iou": box_iou,
    "_contrib_box_nms": box_nms,
    "_contrib_box_decode": box_decode,
    "_contrib_ROIAlign": roi_align,
}
