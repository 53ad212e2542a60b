"""The installed versions of Python, NumPy and MXNet."""

from __future__ import annotations

import platform

import numpy

from .compat import mx


def installed_versions() -> dict[str, str]:
    """Return the versions that a run's figures depend on most, by name: python, numpy and mxnet."""
    return {"python": platform.python_version(), "numpy": numpy.__version__, "mxnet": mx.__version__}
