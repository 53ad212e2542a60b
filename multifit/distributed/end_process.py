"""End a process although a library waits, in its destructors, for ranks that hang."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache


@cache
def end_without_waiting() -> None:
    """Let this process end, when it does and with its status, after Python's clean-up and before C++'s.

    glibc runs the functions given to ``on_exit`` and the destructors of libraries that are loaded now in
    reverse order; ``_exit`` takes the status that ``on_exit`` passes, and nothing runs after it.
    """
    library = ctypes.CDLL(None)
    with suppress(AttributeError):  # other systems' C libraries
        library.on_exit(library._exit, None)
