"""Which versions of what matters are installed."""

from __future__ import annotations

import platform

import numpy

from .compat import mx

__all__ = ["installed_versions"]


def installed_versions() -> dict[str, str]:
    """Return the versions of Python, numpy and mxnet, of which the figures of a run depend most."""
    return {"python": platform.python_version(), "numpy": numpy.__version__, "mxnet": mx.__version__}
