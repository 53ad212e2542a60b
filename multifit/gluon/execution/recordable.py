"""Says which nets may be recorded, and which batches can share a recording."""

from __future__ import annotations

from typing import Any, Hashable, Mapping, Sequence

import numpy as np

from ..compat import mx

STOCK = ("mxnet.", "gluoncv.", "gluonnlp.", "multifit.")  # toolkits' blocks
PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
SEVERAL = (list, tuple, set, frozenset)


def obstacle_of(net: Any) -> tuple[str, str] | None:
    """Return why a net's forward pass must not be recorded, and the way out; None if it may be recorded.

    A recording freezes what the net's Python code does, as hybridizing does: the user must ask for that.
    """
    hybrid = [block for block in shell_of(net).values() if isinstance(block, mx.gluon.HybridBlock)]
    if not hybrid or not all(block._active for block in hybrid):
        return "the net is not hybridized", "call net.hybridize()"
    if any(block._forward_hooks or block._forward_pre_hooks for block in blocks_of(net).values()):
        return "the net, or a block in it, has hooks", "detach them"
    return None


def form_of(net: Any, inputs: Sequence[Any]) -> Hashable:
    """Return what batches must have in common to share a recording.

    These are shapes and dtypes, and the plain attributes of the blocks whose Python code Gluon runs in each
    call, such as numbers that a handler may change.
    """
    types = [array if array is None else (array.shape, array.dtype) for array in inputs]
    return tuple(types), tuple(plain_attributes(shell_of(net)).items())


def blocks_of(net: Any, name: str = "") -> dict[str, Any]:
    """Return a net and all blocks in it by their names, such as ``encoder.0``; the name of the net is ""."""
    blocks = {name: net}
    for child, block in net._children.items():
        blocks.update(blocks_of(block, f"{name}.{child}".lstrip(".")))
    return blocks


def shell_of(net: Any, name: str = "") -> dict[str, Any]:
    """Return, by name, the blocks whose Python code Gluon runs in each call, and their direct children."""
    blocks = {name: net}
    if not isinstance(net, mx.gluon.HybridBlock) or type(net).forward is not mx.gluon.HybridBlock.forward:
        for child, block in net._children.items():
            blocks.update(shell_of(block, f"{name}.{child}".lstrip(".")))
    return blocks


def plain_attributes(blocks: Mapping[str, Any]) -> dict[str, str]:
    """Return the attributes of blocks that are numbers, strings, or collections of these, by their names.

    Toolkits' blocks are left out: some count their calls to make names.
    """
    return {
        f"{name}.{attribute}".lstrip("."): repr(value)
        for name, block in blocks.items()
        if not type(block).__module__.startswith(STOCK)
        for attribute, value in vars(block).items()
        if attribute != "_active" and _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    return all(map(_is_plain, value)) if isinstance(value, SEVERAL) else isinstance(value, PLAIN)
