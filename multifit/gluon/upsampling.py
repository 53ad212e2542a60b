"""Transposed convolutions of few maps, computed as convolutions: how an FCN enlarges its maps of classes."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any, Iterable, Mapping, Sequence

from ..threads import omp_threads
from .compat import mx
from .precision.rewriting import Node, Rewriter

__all__ = ["Form", "as_convolutions", "enlarged"]

Pair = tuple[int, int]  # of the rows, and of the columns

OPERATOR = "Deconvolution"
# Where it was found to be faster, on one thread: .3 to .85 of MXNet's own time. With 8 maps, or more than 15,
# MXNet has better kernels, and so it has for smaller strides.
MAX_MAPS = 15
STRIDE = 4


@dataclass(frozen=True)
class Form:
    """What a transposed convolution is, along rows and columns; its adjustments of the size are left out.

    Attributes
    ----------
    maps : int
        Of the result.
    kernel, stride, pad : (int, int)
        In pixels of the result.
    """

    maps: int
    kernel: Pair
    stride: Pair
    pad: Pair

    @property
    def before(self) -> list[int]:
        """How many of a window's pixels stand before the one that is enlarged."""
        return [-(-pad // stride) for pad, stride in zip(self.pad, self.stride)]

    @property
    def filling(self) -> list[int]:
        """How many zeros come before the kernel, so that it begins where a pixel's square does."""
        return [n * stride - pad for n, stride, pad in zip(self.before, self.stride, self.pad)]

    @property
    def window(self) -> list[int]:
        """How many pixels reach into the square that one pixel becomes."""
        filled = [kernel + zeros for kernel, zeros in zip(self.kernel, self.filling)]
        return [-(-size // stride) for size, stride in zip(filled, self.stride)]

    def is_even(self, adj: Pair = (0, 0)) -> bool:
        """Whether the result is squares alone, as many as there are pixels and as far on every side."""
        sizes = zip(self.kernel, self.stride, self.pad, adj, self.window, self.before)
        return all(
            stride * (window - 2 * before) == kernel - 2 * pad + more and window > before
            for kernel, stride, pad, more, window, before in sizes
        )


def enlarged(F: Any, data: Any, weight: Any, bias: Any, form: Form) -> Any:
    """Compute a transposed convolution as a convolution to one map for each pixel of a square, laid out anew.

    Each pixel becomes a square of ``stride`` pixels, of which every one is a weighted sum over a small window
    of the input; the weights are those of the transposed kernel, taken apart. MXNet's own operator multiplies
    by the whole kernel, and adds up where the results overlap.

    Parameters
    ----------
    F : module
        ``mx.nd`` or ``mx.sym``.
    data : array of shape (N, C, H, W)
        Maps.
    weight : array of shape (C, form.maps, *form.kernel)
        As ``Deconvolution`` takes it.
    bias : array of shape (form.maps,) or None
        Likewise.
    form : Form
        For which ``is_even`` holds.

    Returns
    -------
    array of shape (N, form.maps, H', W')
        The same as ``Deconvolution`` returns, to float tolerance.

    Notes
    -----
    W. Shi et al., "Is the deconvolution layer the same as a convolutional layer?", arXiv:1609.07009 (2016).
    """
    (high, wide), window, square = form.stride, form.window, form.stride[0] * form.stride[1]
    padding = []
    for zeros, size, stride, kernel in zip(form.filling, window, form.stride, form.kernel):
        padding += [zeros, size * stride - kernel - zeros]
    filled = F.pad(weight, mode="constant", pad_width=(0, 0, 0, 0, *padding))
    # C, maps, window's row, row in the square, window's column, column in the square
    apart = F.reshape(filled, (0, 0, -4, window[0], high, -4, window[1], wide))
    kernels = F.reshape(F.transpose(apart, (1, 3, 5, 0, 2, 4)), (form.maps * square, -1, *window))
    more = {"no_bias": True} if bias is None else {"bias": F.repeat(bias, repeats=square)}
    found = F.Convolution(
        data=data,
        weight=F.slice(kernels, begin=(None,) * 4, end=(None,) * 4, step=(1, 1, -1, -1)),
        kernel=tuple(window),
        pad=tuple(size - 1 - before for size, before in zip(window, form.before)),
        num_filter=form.maps * square,
        **more,
    )
    return _laid_out(F, found, data, form)


def _laid_out(F: Any, found: Any, data: Any, form: Form) -> Any:
    """Put maps (N, maps * square, H, W) into squares, by two transpositions that MXNet is quick at."""
    high, wide = form.stride
    columns = F.reshape(F.reshape(found, (0, -4, form.maps * high, wide, -3)), (-3, 0, 0))
    columns = F.transpose(columns, (0, 2, 1))  # N * maps * row in the square, H * W, column in the square
    columns = F.reshape_like(columns, data, lhs_begin=1, lhs_end=2, rhs_begin=2, rhs_end=4)
    rows = F.transpose(F.reshape(columns, (-4, -1, high, 0, -3)), (0, 2, 1, 3))
    return F.reshape(rows, (-4, -1, form.maps, -3, 0))


def as_convolutions(symbols: Sequence[Any], parameters: Iterable[Any]) -> tuple[list[Any], int]:
    """Return the same symbols, with convolutions for transposed ones where that is faster, and how many.

    It is on a CPU with one thread, which MXNet takes as it was imported; with more of them, MXNet's own
    operator is as fast.

    Parameters
    ----------
    symbols : sequence of Symbol
        Outputs of one graph, for the current context.
    parameters : iterable of Parameter
        What the graph's kernels are, shapes known.
    """
    if mx.context.current_context().device_type == "gpu" or omp_threads() > 1:
        return list(symbols), 0
    if f'"{OPERATOR}"' not in mx.sym.Group(list(symbols)).tojson():
        return list(symbols), 0
    replacing = _Replacing({parameter.name: parameter.shape for parameter in parameters})
    return replacing.rewrite(symbols), replacing.count


class _Replacing(Rewriter):
    """Replaces transposed convolutions whose kernels are parameters; `shapes` are these, by name."""

    def __init__(self, shapes: Mapping[str, Sequence[int]]) -> None:
        super().__init__()
        self._shapes = shapes

    def replace(self, node: Node) -> int:
        """Add a node, or what computes the same in less time."""
        form = self._form(node) if node["op"] == OPERATOR else None
        if form is None:
            return super().replace(node)
        names = ("data", "weight", "bias")[: len(node["inputs"])]
        variables = [mx.sym.var(name) for name in names] + [None]
        with mx.name.NameManager():
            symbol = enlarged(mx.sym, *variables[:3], form)
        self.count += 1
        return self.splice(node["name"], symbol, dict(zip(names, node["inputs"])))

    def _form(self, node: Node) -> Form | None:
        """Return what a transposed convolution is, if it is one that is faster as a convolution."""
        attributes = node["attrs"]
        shape = self._shapes.get(self.nodes[node["inputs"][1][0]]["name"]) or ()
        kernel, stride = _sizes(attributes, "kernel", ()), _sizes(attributes, "stride", ())
        plain = (
            attributes.get("layout", "None") in ("None", "NCHW")
            and attributes.get("num_group", "1") == "1"
            and set(_sizes(attributes, "dilate", (1,))) == {1}
            and not any(_sizes(attributes, "target_shape", ()))
        )
        if not plain or len(shape) != 4 or len(kernel) != 2 or len(stride) != 2 or min(stride) < STRIDE:
            return None
        if not (0 < shape[0] <= MAX_MAPS and shape[0] != 8 and shape[1] <= MAX_MAPS + 1):
            return None
        form = Form(int(attributes["num_filter"]), kernel, stride, _sizes(attributes, "pad", (0, 0)))
        return form if form.is_even(_sizes(attributes, "adj", (0, 0))) else None


def _sizes(attributes: Mapping[str, str], name: str, default: Sequence[int]) -> Any:
    said = attributes.get(name, "None")
    return tuple(default) if said in ("None", "[]", "()") else tuple(ast.literal_eval(said))
