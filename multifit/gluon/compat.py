"""The one place that imports mxnet, after putting back what mxnet 1.9.1 misses on newer Pythons.

mxnet 1.9.1 is from 2022. It reads ``numpy.bool``, which numpy 1.24 took away, and ``distutils.version``,
which Python 3.12 took away. Both are put back here *before* mxnet is imported, and only where they are
missing: with numpy 1.23 on Python 3.11 nothing is touched. The files of this package say
``from .compat import mx``.
"""

from __future__ import annotations

import builtins
import importlib
import sys
import types
import warnings
from typing import Any

import numpy

from ..threads import omp_threads
from .versions import LooseVersion, StrictVersion

__all__ = ["mx"]

# mxnet reads `bool` at import and when it indexes; gluoncv reads `float` and `int` when it is called (anchors
# and mAP). So the aliases stay for the life of the process.
ALIASES = ("bool", "float", "int")

INSTALL = (
    'multifit needs mxnet, which is not installed: pip install "multifit[cpu]", '
    'or "multifit[cu112]" for a GPU with CUDA 11.2 ("multifit[cu117]": 11.7)'
)


def refuse_numpy_2(version: str) -> None:
    """Raise ImportError where numpy is too new for mxnet 1.9.1, whatever is put back."""
    if int(version.split(".")[0]) >= 2:
        raise ImportError(
            f"mxnet 1.9.1 cannot run with numpy {version}: "
            'pip install "numpy<1.24" (Python 3.11 and older) or "numpy>=1.26,<2" (from Python 3.12 on)'
        )


def add_numpy_aliases(module: Any) -> list[str]:
    """Put back the aliases of Python's own types that numpy 1.24 removed; return the names of those added."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where an alias is still there, looking at it warns
        missing = [name for name in ALIASES if not hasattr(module, name)]
    for name in missing:
        setattr(module, name, getattr(builtins, name))
    return missing


def add_distutils_version() -> bool:
    """Provide ``distutils.version`` where there is none; return whether that was needed.

    Where setuptools is installed it brings a ``distutils`` of its own, and that one is left alone.
    """
    try:
        importlib.import_module("distutils.version")
        return False
    except ImportError:
        pass
    package, version = types.ModuleType("distutils"), types.ModuleType("distutils.version")
    package.__path__ = []  # a package with nothing else in it, so other imports of it fail as they did
    for cls in (LooseVersion, StrictVersion):
        setattr(version, cls.__name__, cls)
    package.version = version  # type: ignore[attr-defined]
    sys.modules["distutils"], sys.modules["distutils.version"] = package, version
    return True


def load_mxnet() -> types.ModuleType:
    """Import mxnet, made to work on this Python and this numpy.

    Returns
    -------
    module
        mxnet; the very module that is there already where somebody imported it before.

    Raises
    ------
    ImportError
        mxnet is not installed, numpy is 2 or newer, or mxnet itself fails while it is imported.
    """
    refuse_numpy_2(numpy.__version__)
    omp_threads()
    try:
        return importlib.import_module("mxnet")
    except ModuleNotFoundError as error:
        if error.name == "mxnet":
            raise ImportError(INSTALL) from None
        raise
    except Exception as error:
        raise ImportError(
            f"mxnet is installed but fails when it is imported ({type(error).__name__}: {error}). "
            "Where something imported it before multifit did, put `import multifit` first: "
            "from Python 3.12 on, and with numpy 1.24 and newer, mxnet needs what multifit puts back"
        ) from error


mx: Any


def __getattr__(name: str) -> Any:
    """Import mxnet when ``mx`` is first asked for."""
    if name != "mx":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["mx"] = load_mxnet()
    return globals()["mx"]


add_numpy_aliases(numpy)
add_distutils_version()
