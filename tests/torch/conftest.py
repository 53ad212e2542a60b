"""Tests of the engine on PyTorch; all are skipped where torch is not installed."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import pytest


class SkippedModule(pytest.Module):
    """A file of tests that is not imported."""

    def collect(self) -> NoReturn:
        pytest.skip("needs torch", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> pytest.Module | None:
    """Leave files of tests out if torch is missing."""
    return SkippedModule.from_parent(parent, path=module_path) if find_spec("torch") is None else None
