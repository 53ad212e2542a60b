"""What the ranks send each other when they meet: one header of a fixed size, then perhaps some bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Vector = np.ndarray[Any, np.dtype[Any]]

FACTS = 8  # numbers that fit into a header
_FORMAT = struct.Struct(f"=64s?q{FACTS}d")


class Header(NamedTuple):
    """Where in the run a rank is, whether it failed, how many bytes follow, and its facts."""

    moment: str
    failed: bool
    length: int
    facts: tuple[float, ...]


def pack_header(moment: str, facts: Sequence[float], length: int, failed: bool) -> Vector:
    """Return a header as bytes, uint8 of shape (n,): `length` is the number of bytes that follow."""
    if len(facts) > FACTS:
        raise ValueError(f"a meeting takes at most {FACTS} facts, not {len(facts)}")
    zeros = (0.0,) * (FACTS - len(facts))
    packed = _FORMAT.pack(moment.encode()[:64], failed, length, *facts, *zeros)
    return np.frombuffer(bytearray(packed), np.uint8)  # torch warns about read-only memory


def unpack_header(vector: Vector) -> Header:
    """Return the header that :func:`pack_header` made."""
    moment, failed, length, *facts = _FORMAT.unpack(vector.tobytes())
    return Header(moment.rstrip(b"\0").decode("utf-8", "replace"), failed, length, tuple(facts))


def pad(content: bytes, length: int) -> Vector:
    """Return bytes as uint8 of shape (length,), zeros at the end."""
    vector = np.zeros(length, np.uint8)
    vector[: len(content)] = np.frombuffer(content, np.uint8)
    return vector
