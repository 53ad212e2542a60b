"""Products, convolutions, pooling, resizing, recurrent layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F

from ..attributes import Ints, Layout, Tensor
from .elementwise import as_float32
from .reductions import at_least_1d

# ---- Products of matrices


def fully_connected(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    num_hidden: int,
    no_bias: bool = False,
    flatten: bool = True,
) -> Tensor:
    """Return x · weightᵀ + bias; the axes after the first are flattened, or else the last axis is used."""
    if flatten:
        x = x.flatten(1) if x.ndim > 1 else x.unsqueeze(1)
    return F.linear(x, weight, bias)


def dot(
    x: Tensor,
    y: Tensor,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Tensor:
    """Sum over the last axis of `x` and the first axis of `y`.

    If transposed, sum over the first axis of `x`, or the last axis of `y`.
    """
    axes = ([0] if transpose_a else [-1], [-1] if transpose_b else [0])
    return at_least_1d(torch.tensordot(x, y, axes))


def batch_dot(
    x: Tensor,
    y: Tensor,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    alpha: float = 1.0,
    axis: Literal[-2] = -2,
) -> Tensor:
    """Return the product of each pair of matrices, times `alpha`."""
    product = torch.matmul(x.mT if transpose_a else x, y.mT if transpose_b else y)
    return product if alpha == 1 else product * alpha


# ---- Convolutions, along one to three axes, channels first


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    kernel: Ints,
    num_filter: int,
    stride: Ints = (),
    dilate: Ints = (),
    pad: Ints = (),
    num_group: int = 1,
    no_bias: bool = False,
    layout: Layout = None,
) -> Tensor:
    """Convolve."""
    function = (F.conv1d, F.conv2d, F.conv3d)[len(kernel) - 1]
    return function(x, weight, bias, stride or 1, pad or 0, dilate or 1, num_group)


def deconvolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    kernel: Ints,
    num_filter: int,
    stride: Ints = (),
    dilate: Ints = (),
    pad: Ints = (),
    adj: Ints = (),
    target_shape: Ints = (),
    num_group: int = 1,
    no_bias: bool = True,
    layout: Layout = None,
) -> Tensor:
    """Return the transposed convolution; `target_shape` replaces `pad` and `adj`."""
    axes = len(kernel)
    stride, dilate = stride or (1,) * axes, dilate or (1,) * axes
    pad, adj = pad or (0,) * axes, adj or (0,) * axes
    if any(target_shape):
        sizes = zip(x.shape[2:], kernel, stride, dilate, target_shape)
        surplus = [s * (size - 1) + d * (k - 1) + 1 - target for size, k, s, d, target in sizes]
        pad, adj = tuple((n + 1) // 2 for n in surplus), tuple(n % 2 for n in surplus)
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[axes - 1]
    return function(x, weight, bias, stride, pad, adj, num_group, dilate)


# ---- Operators that enlarge and shrink maps


def upsampling(x: Tensor, *, scale: int, sample_type: Literal["nearest"], num_filter: int = 0) -> Tensor:
    """Enlarge maps by copying pixels."""
    return F.interpolate(x, scale_factor=float(scale))


def bilinear_resize(
    x: Tensor,
    like: Tensor | None = None,
    *,
    height: int = 1,
    width: int = 1,
    scale_height: float | None = None,
    scale_width: float | None = None,
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


# ---- Operators on sequences of different lengths, with time along axis 0 or 1


def sequence_mask(
    x: Tensor,
    length: Tensor | None = None,
    *,
    use_sequence_length: bool = False,
    value: float = 0.0,
    axis: int = 0,
) -> Tensor:
    """Replace the elements after each sequence's end by a value."""
    if length is None or not use_sequence_length:
        return x
    steps = torch.arange(x.shape[axis], device=x.device)
    is_behind = steps.unsqueeze(1 - axis) >= length.long().unsqueeze(axis)
    return x.masked_fill(is_behind.reshape(*is_behind.shape, *[1] * (x.ndim - 2)), value)


def sequence_reverse(
    x: Tensor, length: Tensor | None = None, *, use_sequence_length: bool = False, axis: Literal[0] = 0
) -> Tensor:
    """Reverse each sequence, and leave the elements after its end in place."""
    if length is None or not use_sequence_length:
        return x.flip(0)
    steps, length = torch.arange(x.shape[0], device=x.device).unsqueeze(1), length.long()
    index = torch.where(steps < length, length - 1 - steps, steps)
    return x.gather(0, index.reshape(*index.shape, *[1] * (x.ndim - 2)).expand(x.shape))


def sequence_last(
    x: Tensor, length: Tensor | None = None, *, use_sequence_length: bool = False, axis: int = 0
) -> Tensor:
    """Return each sequence's last element."""
    x = x.transpose(0, axis)
    if length is None or not use_sequence_length:
        return x[-1]
    return x[length.long() - 1, torch.arange(x.shape[1], device=x.device)]


def ctc_loss(
    x: Tensor,
    label: Tensor,
    *lengths: Tensor,
    use_data_lengths: bool = False,
    use_label_lengths: bool = False,
    blank_label: Literal["first", "last"] = "first",
) -> Tensor:
    """Return minus the logarithm of each label's probability; 0 if the scores have too few steps for it.

    Without lengths, a label ends before its first 0 if the blank is the first class, else before its first
    -1.
    """
    steps, batch, classes = x.shape
    blank, end = (0, 0) if blank_label == "first" else (classes - 1, -1)
    lengths_of_labels = lengths[-1] if use_label_lengths else (label != end).cumprod(1).sum(1)
    lengths_of_data = lengths[0] if use_data_lengths else torch.full((batch,), steps, device=x.device)
    return torch.nn.functional.ctc_loss(
        x.log_softmax(-1),
        label.long(),
        lengths_of_data.long(),
        lengths_of_labels.long(),
        blank,
        reduction="none",
        zero_infinity=True,
    )


# ---- Pooling, along one to three axes, channels first


def pooling(
    x: Tensor,
    *,
    kernel: Ints = (),
    pool_type: Literal["max", "avg"] = "max",
    global_pool: bool = False,
    pooling_convention: Literal["valid", "full"] = "valid",
    stride: Ints = (),
    pad: Ints = (),
    count_include_pad: bool | None = True,
    layout: Layout = None,
) -> Tensor:
    """Return the maximum or mean of each window; with "full", windows may extend beyond the padded map.

    Raises ValueError if a mean would begin there, as torch has no such windows.
    """
    if global_pool:
        kernel, stride, pad = tuple(x.shape[2:]), (), ()
    stride, pad, full = stride or (1,) * len(kernel), pad or (0,) * len(kernel), pooling_convention == "full"
    axes = list(zip(x.shape[2:], kernel, stride, pad)) if full else []
    beyond = [-(-(size + 2 * p - k) // s) * s + k - 2 * p - size for size, k, s, p in axes]
    if pool_type == "max":
        widths = [n for each in reversed(beyond) for n in (0, each)]
        x = F.pad(x, widths, value=torch.finfo(x.dtype).min) if any(widths) else x
        return (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(kernel) - 1](x, kernel, stride, pad)
    if any(n >= k - p for n, (_, k, _, p) in zip(beyond, axes)):
        raise ValueError(
            f"Pooling by {kernel}, stride {stride}: a mean begins beyond the map {(*x.shape[2:],)}"
        )
    means = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(kernel) - 1]
    return means(x, kernel, stride, pad, any(beyond), count_include_pad is not False)


def adaptive_avg_pool(x: Tensor, *, output_size: Ints = (1,)) -> Tensor:
    """Return the means of windows, one for each pixel of the output."""
    return F.adaptive_avg_pool2d(x, output_size * 2 if len(output_size) == 1 else output_size)


# ---- Recurrent layers, with time along axis 0


def rnn(
    x: Tensor,
    parameters: Tensor,
    state: Tensor,
    cell: Tensor | None = None,
    *,
    training: bool,
    mode: Literal["lstm", "gru", "rnn_tanh", "rnn_relu"],
    state_size: int,
    num_layers: int,
    bidirectional: bool = False,
    p: float = 0.0,
    state_outputs: bool = False,
    projection_size: Literal[None] = None,
    lstm_state_clip_min: Literal[None] = None,
    lstm_state_clip_max: Literal[None] = None,
    lstm_state_clip_nan: Literal[False, 0] = False,
    use_sequence_length: Literal[False, 0] = False,
) -> tuple[Tensor, ...]:
    """Return the outputs (T, N, C) of a recurrent net, and its last states with `state_outputs`."""
    directions = 2 if bidirectional else 1
    weights = unpacked(parameters, mode, x.shape[-1], state_size, num_layers, directions)
    # One row of zeros may stand for the states of the whole batch.
    state = state.expand(-1, x.shape[1], -1).contiguous()
    # cuDNN has a backward pass in training mode only; without dropout, training mode computes the same.
    mode_options = (p, True) if training else (0.0, torch.is_grad_enabled())
    options = (weights, True, num_layers, *mode_options, bidirectional, False)
    if cell is not None:
        y, *states = torch.lstm(x, (state, cell.expand(-1, x.shape[1], -1).contiguous()), *options)
    else:
        functions = {"gru": torch.gru, "rnn_tanh": torch.rnn_tanh, "rnn_relu": torch.rnn_relu}
        y, *states = functions[mode](x, state, *options)
    # compiled by PyTorch 2.11, an LSTM's states have a dimension more
    return y, *([each.reshape(state.shape) for each in states] if state_outputs else [])


def unpacked(
    parameters: Tensor, mode: str, inputs: int, size: int, layers: int, directions: int
) -> list[Tensor]:
    """Return the weights and biases of each layer and direction, in the order that torch takes.

    In MXNet's vector, all weights come before all biases; the order of the gates is the same.
    """
    gates = {"lstm": 4, "gru": 3}.get(mode, 1) * size
    columns = [[inputs if layer == 0 else size * directions, size] for layer in range(layers)]
    columns = [each for each in columns for _ in range(directions)]
    counts = [gates * count for pair in columns for count in pair]
    pieces = list(parameters.split([*counts, *[gates] * (2 * len(columns))]))
    biases = pieces[len(counts) :]
    weights = [piece.reshape(gates, -1) for piece in pieces[: len(counts)]]
    pairs = zip(weights[::2], weights[1::2], biases[::2], biases[1::2])
    return [piece for group in pairs for piece in group]


OPERATORS: dict[str, Callable[..., Any]] = {
    "FullyConnected": fully_connected,
    "dot": dot,
    "batch_dot": batch_dot,
    "_linalg_gemm2": batch_dot,
    "Convolution": convolution,
    "Deconvolution": deconvolution,
    "Pooling": pooling,
    "_contrib_AdaptiveAvgPooling2D": adaptive_avg_pool,
    "UpSampling": upsampling,
    "_contrib_BilinearResize2D": bilinear_resize,
    "RNN": rnn,
    "CTCLoss": ctc_loss,
    "SequenceMask": sequence_mask,
    "SequenceReverse": sequence_reverse,
    "SequenceLast": sequence_last,
}
