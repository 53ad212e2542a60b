"""The blocks of a net."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

STOCK = ("mxnet.", "gluoncv.", "gluonnlp.", "multifit.")  # toolkits' blocks


def blocks_of(net: Any, name: str = "") -> dict[str, Any]:
    """Return a net and all blocks in it by their names, such as ``encoder.0``; the name of the net is ""."""
    blocks = {name: net}
    for child, block in net._children.items():
        blocks.update(blocks_of(block, f"{name}.{child}".lstrip(".")))
    return blocks


@contextmanager
def run_by_python(blocks: Iterable[Any]) -> Iterator[None]:
    """Run hybridized blocks as if they were not hybridized, and keep their graphs."""
    active = [block for block in blocks if getattr(block, "_active", False)]
    for block in active:
        block._active = False
    try:
        yield
    finally:
        for block in active:
            block._active = True
