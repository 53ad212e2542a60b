"""multifit: train Gluon nets with several outputs, losses and trainers through one short loop."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# From here on mxnet can be imported, on Python 3.12 too.
from .gluon import compat as compat

if TYPE_CHECKING:
    from .exports import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import mxnet and all else with the first name that is used: the command sets its environment before."""
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".exports", __name__), name)
