"""Operators that enlarge and shrink maps."""

from __future__ import annotations

from typing import Literal, Optional

import torch
import torch.nn.functional as F

from ..attributes import Tensor


def upsampling(
    *inputs: Tensor,
    scale: int,
    sample_type: Literal["nearest", "bilinear"],
    num_filter: int = 0,
    multi_input_mode: Literal["concat", "sum"] = "concat",
) -> Tensor:
    """Enlarge maps to `scale` times the size of the first by copying pixels, or by a given kernel."""
    if sample_type == "bilinear":
        x, weight = inputs
        return F.conv_transpose2d(x, weight, None, scale, scale // 2, 0, x.shape[1])
    height = inputs[0].shape[2] * scale
    maps = [F.interpolate(x, scale_factor=float(height // x.shape[2])) for x in inputs]
    if multi_input_mode == "sum":
        return torch.stack(maps).sum(0)
    return torch.cat(maps, 1)


def bilinear_resize(
    x: Tensor,
    like: Optional[Tensor] = None,
    *,
    height: int = 1,
    width: int = 1,
    scale_height: Optional[float] = None,
    scale_width: Optional[float] = None,
    mode: Literal["size", "like"] = "size",
    align_corners: bool = True,
) -> Tensor:
    """Interpolate maps to another size; by default the pixels in the corners keep their place."""
    size = [height, width]
    if like is not None:
        size = list(like.shape[2:])
    elif scale_height is not None and scale_width is not None:
        size = [scaled(x.shape[2], scale_height), scaled(x.shape[3], scale_width)]
    return F.interpolate(x, size, mode="bilinear", align_corners=align_corners)


def scaled(size: int, scale: float) -> int:
    """Return a size times a scale, rounded down; MXNet multiplies in float32, in which 100 · .29 is 29."""
    # __index__: torch.compile would make a size a symbol, and then leave the rounding out
    return int(as_float32(size.__index__() * as_float32(scale)))


def as_float32(number: float) -> float:
    """Round a number to the 24 bits of float32 by Dekker's splitting, as a tensor would have to be read."""
    shifted = number * (2**29 + 1)
    return shifted - (shifted - number)


OPERATORS = {"UpSampling": upsampling, "_contrib_BilinearResize2D": bilinear_resize}
