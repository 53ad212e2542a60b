"""The setup that the tests of a file share; after all errors it still trains."""

from collections.abc import Iterator

import pytest

from .setups import Setup, new_setup


@pytest.fixture(scope="module")
def setup() -> Iterator[Setup]:
    shared = new_setup()
    yield shared
    shared.trains()
