"""``--quiet``: no log lines on the console below a warning."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import Iterator

from ..estimator import get_logger

__all__ = ["quiet"]


@contextmanager
def quiet(enabled: bool) -> Iterator[None]:
    """Show only warnings on the console inside the block, if `enabled`; log files get everything."""
    levels = {handler: handler.level for handler in get_logger().handlers} if enabled else {}
    for handler in levels:
        handler.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for handler, level in levels.items():
            handler.setLevel(level)
