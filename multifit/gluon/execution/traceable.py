"""Says what may become part of a traced graph."""

from __future__ import annotations

from typing import Any

from ...spec.terms import is_multi_box
from ..compat import mx
from .recordable import STOCK


def is_traceable(block: Any) -> bool:
    """Whether a loss may become part of a graph: it is hybridized, or belongs to a toolkit.

    A user's own HybridBlock that is not hybridized may hold state that changes while training, and a function
    may do anything: a graph would silently freeze what they do. SDMLLoss reads shapes, which symbols lack.
    Of gluoncv's SSD loss, there is a graph of ours.
    """
    if is_multi_box(block):
        return True
    takes_symbols = isinstance(block, mx.gluon.HybridBlock) and not isinstance(block, mx.gluon.loss.SDMLLoss)
    return takes_symbols and (is_hybridized(block) or _is_stock(block))


def is_hybridized(block: Any) -> bool:
    """Whether a block's own graph would be traced if it were called."""
    return isinstance(block, mx.gluon.HybridBlock) and block._active


def hybridizing(net: Any) -> tuple[str, str]:
    """Return why a net cannot be traced if it is not hybridized, and the way out."""
    if isinstance(net, mx.gluon.HybridBlock):
        return "it is not hybridized", "call net.hybridize()"
    return "it is a Block, which cannot be traced", "write it as a HybridBlock, and call net.hybridize()"


def _is_stock(block: Any) -> bool:
    # a HybridLambda and a container may hold the user's code
    stock = type(block).__module__.startswith(STOCK) and not isinstance(block, mx.gluon.nn.HybridLambda)
    return stock and all(_is_stock(child) for child in block._children.values())


def runs_python(net: Any) -> bool:
    """Whether a hybridized net has Python code that runs at every call, which a graph would skip.

    It has if it has hooks, or overrides a method that Gluon calls directly. Hooks of its children do not
    count: hybridizing skips them too.
    """
    if net._forward_hooks or net._forward_pre_hooks:
        return True
    classes = [kind for kind in type(net).__mro__ if not kind.__module__.startswith((*STOCK, "builtins"))]
    return any({"forward", "__call__"} & set(vars(kind)) for kind in classes)
