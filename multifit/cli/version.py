"""``multifit --version``: multifit's, mxnet's and Python's version in one line."""

from __future__ import annotations

import platform
from importlib import metadata

from .. import __version__

__all__ = ["version_line"]


def version_line() -> str:
    """Return the versions, without importing mxnet."""
    return f"multifit {__version__}, mxnet {_mxnet_version()}, Python {platform.python_version()}"


def _mxnet_version() -> str:
    for package in ("mxnet", "mxnet-cu112", "mxnet-cu117"):  # the builds have names of their own
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return "not installed"
