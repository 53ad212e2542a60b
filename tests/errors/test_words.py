"""Numbers in messages, as people write them."""

from __future__ import annotations

import pytest

from multifit.errors import memory


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (12, "12 bytes"), (1500, "1.5 kB"), (20_000_000, "20 MB"), (3.25e9, "3.25 GB")],
)
def test_memory(size: float, text: str) -> None:
    assert memory(size) == text
