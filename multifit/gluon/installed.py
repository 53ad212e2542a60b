"""The installed versions of multifit, Python, NumPy and MXNet."""

import platform

import numpy

from ..version import __version__
from .compat import mx


def installed_versions() -> dict[str, str]:
    """Return the versions that a run's figures depend on most, by name."""
    return {
        "multifit": __version__,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "mxnet": mx.__version__,
    }
