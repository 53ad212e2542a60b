"""The setup that a file's tests share: whatever it was refused for, it goes on to train."""

from __future__ import annotations

from typing import Iterator

import pytest

from .setups import Setup, new_setup


@pytest.fixture(scope="module")
def setup() -> Iterator[Setup]:
    shared = new_setup()
    yield shared
    shared.trains()
