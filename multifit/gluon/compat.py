"""Import mxnet, and make mxnet 1.9.1 (2022) run on newer Pythons: ``from .compat import mx``.

mxnet reads ``numpy.bool``, which numpy 1.24 removed, and ``distutils.version``, which Python 3.12 removed.
The first is put back here *before* mxnet is imported; the second comes with setuptools, which multifit
requires from Python 3.12 on. gluoncv refuses to be imported if torch 2.0 or newer is installed, so torch is
hidden from it.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import types
import warnings
from collections.abc import Sequence
from typing import Any, Callable

import numpy

from ..threads import omp_threads

# mxnet reads `bool` at import and when arrays are indexed; gluoncv reads `float` and `int` for anchors and
# mAP. So the aliases stay as long as the process runs.
ALIASES = ("bool", "float", "int")

INSTALL = (
    'multifit needs mxnet, which is not installed: pip install "multifit[cpu]", '
    'or "multifit[cu112]" for a GPU with CUDA 11.2 ("multifit[cu117]": 11.7)'
)
INSTALL_DISTUTILS = (
    "mxnet needs distutils, which Python 3.12 no longer has; setuptools has it: pip install setuptools"
)


def refuse_numpy_2(version: str) -> None:
    """Raise ImportError if numpy is so new that mxnet 1.9.1 cannot run with it, even with aliases."""
    if int(version.split(".")[0]) >= 2:
        raise ImportError(
            f"mxnet 1.9.1 cannot run with numpy {version}: "
            'pip install "numpy<1.24" (Python 3.11 and older) or "numpy>=1.26,<2" (from Python 3.12 on)'
        )


def add_numpy_aliases(module: Any) -> list[str]:
    """Add the aliases of Python's own types that numpy 1.24 removed; return the names of those added."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an alias that is still there warns when it is read
        missing = [name for name in ALIASES if not hasattr(module, name)]
    for name in missing:
        setattr(module, name, getattr(builtins, name))
    return missing


def load_mxnet() -> types.ModuleType:
    """Import mxnet.

    Returns
    -------
    module
        mxnet; the same module if it was imported before.

    Raises
    ------
    ImportError
        mxnet or distutils is not installed, numpy is 2 or newer, or the import of mxnet fails.
    """
    refuse_numpy_2(numpy.__version__)
    omp_threads()  # reads the environment now, as mxnet does
    os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")  # otherwise it logs even if it changes no graph
    try:
        return importlib.import_module("mxnet")
    except ModuleNotFoundError as error:
        hints = {"mxnet": INSTALL, "distutils": INSTALL_DISTUTILS}
        if error.name in hints:
            raise ImportError(hints[error.name]) from None
        raise
    except Exception as error:
        raise ImportError(
            f"mxnet is installed but fails when it is imported ({type(error).__name__}: {error}). "
            "If something imports it before multifit, put `import multifit` first: "
            "with numpy 1.24 and newer, mxnet needs names that multifit puts back"
        ) from error


class HideTorch(importlib.abc.MetaPathFinder):
    """Hides torch from gluoncv while that is imported; it does not look for torch later."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find gluoncv as other finders do, and no other module."""
        finders = [each for each in sys.meta_path if each is not self] if fullname == "gluoncv" else []
        specs = (finder.find_spec(fullname, path, target) for finder in finders)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            setattr(spec.loader, "exec_module", _without_torch(spec.loader.exec_module))  # noqa: B010
        return spec


def _without_torch(execute: Callable[[types.ModuleType], None]) -> Callable[[types.ModuleType], None]:
    def hide_and_execute(module: types.ModuleType) -> None:
        before = sys.modules.pop("torch", None)
        sys.modules["torch"] = None  # type: ignore[assignment]
        try:
            execute(module)
        finally:
            del sys.modules["torch"]
            if before is not None:
                sys.modules["torch"] = before

    return hide_and_execute


mx: Any


def __getattr__(name: str) -> Any:
    """Import mxnet when ``mx`` is first read."""
    if name != "mx":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["mx"] = load_mxnet()
    return globals()["mx"]


add_numpy_aliases(numpy)
sys.meta_path.insert(0, HideTorch())
