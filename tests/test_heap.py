"""Freed memory is given back to the system, where the C library can do that."""

from __future__ import annotations

import ctypes
import platform

import pytest

from multifit import heap


def resident() -> float:
    """Return this process's megabytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:")) / 1024


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps it, and can be asked")
def test_what_was_freed_is_given_back():
    blocks = [bytearray(b"x" * 100_000) for _ in range(1000)]
    between = blocks[::100]  # so that the others cannot be given back by themselves
    del blocks
    before = resident()
    heap.give_back()
    assert resident() < before - 50
    assert len(between) == 10


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_another_c_library_is_left_alone(monkeypatch, error):
    def fail(name):
        raise error("no")

    monkeypatch.setattr(ctypes, "CDLL", fail)
    heap.give_back()
