"""multifit: train Gluon nets with several outputs, losses and trainers through one short loop."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# From here on mxnet can be imported, on Python 3.12 too.
from .gluon import compat as compat
from .version import __version__ as __version__

if TYPE_CHECKING:
    from .exports import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Import mxnet and everything else with the first name that is used.

    The command ``multifit`` sets its environment before that.
    """
    if not name.startswith("__") or name == "__all__":
        exports = import_module(".exports", __name__)
        for names in (vars(exports), globals()):  # the submodules are there by now, too
            if name in names:
                return names[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the exported names too, for completion."""
    return sorted({*globals(), *__getattr__("__all__")})
