"""End a process even if the destructors of a library would wait for ranks that hang."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache


@cache
def end_without_waiting() -> None:
    """Let this process end without C++'s clean-up; Python's clean-up and the exit status stay as they are.

    glibc runs the functions given to ``on_exit`` and the destructors of loaded libraries in reverse order, so
    ``_exit`` comes before the destructors of all libraries that are loaded now. It takes the status that
    ``on_exit`` passes, and nothing runs after it.
    """
    library = ctypes.CDLL(None)
    with suppress(AttributeError):  # other systems' C libraries
        library.on_exit(library._exit, None)
