"""Operators that sample maps at places between pixels, as spatial transformers do."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F

from ..attributes import Ints, Tensor


def grid_generator(
    x: Tensor, *, transform_type: Literal["affine", "warp"], target_shape: Ints = (0, 0)
) -> Tensor:
    """Return places (x, y), from -1 to 1 over a map, for each pixel of another map.

    `x` has six numbers for each sample, an affine transformation of the pixels' own places; or, to warp, how
    many pixels each of them is moved.
    """
    height, width = x.shape[2:] if transform_type == "warp" else target_shape
    rows, columns = (torch.arange(size, dtype=x.dtype, device=x.device) for size in (height, width))
    across, down = columns.expand(height, width), rows[:, None].expand(height, width)
    if transform_type == "warp":
        half = [(size - 1) / 2 for size in (width, height)]
        return torch.stack([(x[:, 0] + across) / half[0] - 1, (x[:, 1] + down) / half[1] - 1], 1)
    across, down = across * (2 / (width - 1)) - 1, down * (2 / (height - 1)) - 1
    own = torch.stack([across, down, torch.ones_like(down)]).flatten(1)
    return (x.reshape(-1, 2, 3) @ own).reshape(-1, 2, height, width)


def bilinear_sampler(x: Tensor, grid: Tensor) -> Tensor:
    """Return maps interpolated at places (x, y); what is outside is 0."""
    return F.grid_sample(x, grid.permute(0, 2, 3, 1), align_corners=True)


def spatial_transformer(
    x: Tensor,
    loc: Tensor,
    *,
    target_shape: Ints = (0, 0),
    transform_type: Literal["affine"],
    sampler_type: Literal["bilinear"],
) -> Tensor:
    """Return maps transformed to another size by six numbers for each sample."""
    return bilinear_sampler(x, grid_generator(loc, transform_type="affine", target_shape=target_shape))


OPERATORS = {
    "GridGenerator": grid_generator,
    "BilinearSampler": bilinear_sampler,
    "SpatialTransformer": spatial_transformer,
}
