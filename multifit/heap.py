"""The process's heap: what was freed stays the process's, in glibc, until somebody gives it back."""

from __future__ import annotations

import ctypes

__all__ = ["give_back"]


def give_back() -> None:
    """Return freed memory to the system, where the C library can (glibc's ``malloc_trim``).

    Large arrays that live long find no room between what is left of others; so the peak is lower if this
    comes before they are made.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library; Windows has no such handle
        return
    trim(0)
