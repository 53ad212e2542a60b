"""Operators on boxes: (x, y, x, y) of two corners, or (x, y, w, h) with a center.

Only `box_nms` has a gradient.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

from ..attributes import Tensor

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


def areas(boxes: Tensor) -> Tensor:
    """Return the areas of boxes; 0 if the corners are swapped."""
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)


def intersection_over_union(x: Tensor, y: Tensor) -> Tensor:
    """Return the overlaps (..., N, M) of boxes (..., N, 4) with boxes (..., M, 4), given by corners."""
    low = torch.maximum(x[..., :, None, :2], y[..., None, :, :2])
    high = torch.minimum(x[..., :, None, 2:], y[..., None, :, 2:])
    both = (high - low).clamp(min=0).prod(-1)
    either = areas(x)[..., :, None] + areas(y)[..., None, :] - both
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
    background_id: int = -1,
    force_suppress: bool = False,
    in_format: Format = "corner",
    out_format: Format = "corner",
) -> Tensor:
    """Return the rows whose boxes do not overlap a box with a better score, by score; then rows of -1.

    Gradients are passed unchanged to the rows that are kept, even if the formats of boxes differ.
    """
    rows = x.reshape(-1, *x.shape[-2:])
    score = rows[..., score_index].detach()
    valid = score > valid_thresh
    if id_index >= 0 and background_id >= 0:
        valid = valid & (rows[..., id_index] != background_id)
    order = score.masked_fill(~valid, -math.inf).argsort(dim=1, descending=True, stable=True)
    rows, valid = rows.gather(1, order.unsqueeze(-1).expand(rows.shape)), valid.gather(1, order)
    count = topk if 0 < topk < rows.shape[1] else rows.shape[1]
    best = rows[:, :count]
    boxes = as_corners(best[..., coord_start : coord_start + 4].detach(), in_format)
    suppresses = (intersection_over_union(boxes, boxes) > overlap_thresh).triu(1)
    if id_index >= 0 and not force_suppress:
        suppresses &= best[..., id_index].unsqueeze(2) == best[..., id_index].unsqueeze(1)
    kept = not_suppressed(valid[:, :count], suppresses)
    front = (~kept).to(torch.int8).argsort(dim=1, stable=True).unsqueeze(-1).expand(best.shape)
    best = torch.cat(
        [best[..., :coord_start], *_formatted(best, boxes, coord_start, in_format, out_format)], -1
    )
    result = torch.full_like(rows, -1)
    result[:, :count] = best.masked_fill(~kept.unsqueeze(-1), -1).gather(1, front)
    return result.reshape(x.shape)


def _formatted(rows: Tensor, corners: Tensor, start: int, old: str, new: str) -> tuple[Tensor, Tensor]:
    """Return the columns from the boxes on, with the boxes in the new format."""
    boxes = rows[..., start : start + 4]
    if old != new:
        gradient = (boxes - boxes.detach()).nan_to_num(nan=0.0)  # its value is 0, even for infinite boxes
        boxes = (corners if new == "corner" else as_centers(corners, "corner")) + gradient
    return boxes, rows[..., start + 4 :]


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


def box_encode(
    samples: Tensor, matches: Tensor, anchors: Tensor, references: Tensor, means: Tensor, stds: Tensor
) -> tuple[Tensor, ...]:
    """Return the offsets of matched boxes from anchors, both given by corners, and which offsets count."""
    index = matches.long().unsqueeze(-1).expand(-1, -1, 4)
    matched = as_centers(references.detach().gather(1, index), "corner")
    anchors = as_centers(anchors.detach(), "corner")
    offsets = (matched[..., :2] - anchors[..., :2]) / anchors[..., 2:]
    offsets = torch.cat([offsets, torch.log(matched[..., 2:] / anchors[..., 2:])], -1)
    counts = (samples > 0.5).unsqueeze(-1).expand(offsets.shape)
    return torch.where(counts, (offsets - means) / stds, 0), counts.to(offsets.dtype)


OPERATORS = {
    "_contrib_box_iou": box_iou,
    "_contrib_box_nms": box_nms,
    "_contrib_box_decode": box_decode,
    "_contrib_box_encode": box_encode,
}
