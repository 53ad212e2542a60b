"""multifit: train nets with several outputs, losses and trainers through one short loop.

``import multifit`` imports neither mxnet nor torch; each name is imported when it is first used.
"""

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# From here on mxnet can be imported, on Python 3.12 too.
from .gluon import compat as compat
from .version import __version__ as __version__

_HOMES = {  # the modules of the names that the stub imports; a module is at home in the package itself
    alias.name: node.module
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8")).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
__all__ = sorted(name for name in _HOMES if not name.startswith("_"))  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    """Import what the package exports, or a module in it, when its name is first used."""
    if _HOMES.get(name) is not None:
        globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
        return globals()[name]
    if not name.startswith("_") and find_spec(f"{__name__}.{name}"):
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the exported names too, for completion."""
    return sorted({*globals(), *__all__})
