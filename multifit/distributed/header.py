"""What the ranks send each other when they meet: one header of a fixed size, then perhaps some bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Vector = np.ndarray[Any, np.dtype[Any]]

FACTS = 8  # numbers that fit into a header
HEADER = np.dtype(
    [("moment", "S64"), ("failed", "i8"), ("length", "i8"), ("facts", "f8", (FACTS,))],
)


def pack_header(moment: str, facts: Sequence[float], length: int, failed: bool) -> Vector:
    """Return a header as bytes, uint8 of shape (n,): `length` is that of the bytes which follow."""
    if len(facts) > FACTS:
        raise ValueError(f"a meeting takes at most {FACTS} facts, not {len(facts)}")
    header = np.zeros(1, HEADER)
    header["moment"] = moment.encode()[:64]
    header["failed"], header["length"] = failed, length
    header["facts"][0, : len(facts)] = facts
    return header.view(np.uint8)


def unpack_headers(vectors: Sequence[Vector]) -> Vector:
    """Return the headers of all ranks as one structured array of shape (size,)."""
    return np.concatenate([np.ascontiguousarray(vector, np.uint8).view(HEADER) for vector in vectors])


def pad(content: bytes, length: int) -> Vector:
    """Return bytes as uint8 of shape (length,), zeros at the end."""
    vector = np.zeros(length, np.uint8)
    vector[: len(content)] = np.frombuffer(content, np.uint8)
    return vector


def moments_of(headers: Vector) -> list[str]:
    """Return where each rank is."""
    return [bytes(moment).decode("utf-8", "replace") for moment in headers["moment"]]
