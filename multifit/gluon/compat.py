"""Import mxnet, and make mxnet 1.9.1 (2022) run on newer Pythons: ``from .compat import mx``.

mxnet reads names such as ``numpy.bool`` and ``numpy.PZERO``, which numpy 1.24 and 2.0 removed, and
``distutils.version``, which Python 3.12 removed. The names are put back when mxnet is imported, by whomever;
without it, numpy stays as it is. distutils comes with setuptools, which the extras for mxnet require from
Python 3.12 on. gluoncv refuses to be imported if torch 2.0 or newer is installed, so torch is hidden from it.
"""

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import numpy

from ..utils.seeding import add_seeder
from ..utils.threads import omp_threads

Around = Callable[[types.ModuleType], AbstractContextManager[None]]

# mxnet reads `bool` at import and when arrays are indexed, its Gluon handlers `Inf` when they are made, and
# gluoncv `float` and `int` for anchors and mAP. So these stay as long as the process runs.
ALIASES = {"bool": bool, "float": float, "int": int, "Inf": numpy.inf}
# These are read only while mxnet is imported, to become names of mxnet.numpy.
REMOVED: dict[str, Any] = {
    "NAN": numpy.nan,
    "NaN": numpy.nan,
    "NINF": -numpy.inf,
    "PINF": numpy.inf,
    "NZERO": -0.0,
    "PZERO": 0.0,
    "alltrue": numpy.all,
    "sometrue": numpy.any,
    "product": numpy.prod,
    "round_": numpy.round,
    "in1d": lambda *arrays, **options: numpy.ravel(numpy.isin(*arrays, **options)),
    "msort": partial(numpy.sort, axis=0),
    "trapz": getattr(numpy, "trapezoid", None),
    **dict.fromkeys(("mirr", "npv", "pmt", "ppmt", "pv", "rate")),  # raised an error since numpy 1.20
}

INSTALL = (
    "Gluon nets need mxnet, which is not installed: pip install mxnet==1.9.1, or mxnet-cu112==1.9.1 for a "
    "GPU with CUDA 11.2 (mxnet-cu117==1.9.1: 11.7)"
)
INSTALL_DISTUTILS = (
    "mxnet needs distutils, which Python 3.12 no longer has; setuptools has it: pip install setuptools"
)


def add_missing(module: Any, names: Mapping[str, Any]) -> list[str]:
    """Add those of the names that the module does not have; return them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a deprecated name that is still there warns when it is read
        missing = [name for name in names if not hasattr(module, name)]
    for name in missing:
        setattr(module, name, names[name])
    return missing


@contextmanager
def numpy_1(_: types.ModuleType) -> Iterator[None]:
    """Put back, within the block, what numpy 2 removed and mxnet reads while it is imported."""
    added = add_missing(numpy, REMOVED)
    try:
        yield
    finally:
        for name in added:
            delattr(numpy, name)


@contextmanager
def prepared(mxnet: types.ModuleType) -> Iterator[None]:
    """Let the block execute mxnet; then it is seeded with everything else."""
    omp_threads()  # reads the environment now, as mxnet does
    os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")  # otherwise it logs even if it changes no graph
    add_missing(numpy, ALIASES)
    with numpy_1(mxnet):
        yield
    add_seeder(mxnet.random.seed)


@contextmanager
def tobytes(recordio: types.ModuleType) -> Iterator[None]:
    """Let `pack` and `pack_img`, which the block defines, call ``tobytes``; numpy removed ``tostring``."""
    yield
    for function in (recordio.pack, recordio.pack_img):
        code = function.__code__
        names = ("tobytes" if name == "tostring" else name for name in code.co_names)
        function.__code__ = code.replace(co_names=tuple(names))


@contextmanager
def plain_numbers(module: types.ModuleType) -> Iterator[None]:
    """Let operators, which the block defines, write NumPy's scalars in a list or tuple as plain numbers.

    Operators take their arguments as text: ``(2, 3)``, where numpy 2 writes ``(np.int64(2), np.int64(3))``.
    """
    yield

    def text(value: object) -> str:
        if isinstance(value, (list, tuple)) and any(isinstance(item, numpy.generic) for item in value):
            kind = tuple if isinstance(value, tuple) else list
            value = kind(item.item() if isinstance(item, numpy.generic) else item for item in value)
        return str(value)

    setattr(module, "str", text)  # noqa: B010


@contextmanager
def without_torch(_: types.ModuleType) -> Iterator[None]:
    """Hide torch within the block from gluoncv, which does not look for it later."""
    before = sys.modules.pop("torch", None)
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]
        if before is not None:
            sys.modules["torch"] = before


# what surrounds the execution of a module when it is imported, also by the user
OPERATORS = ("mxnet._ctypes.ndarray", "mxnet._ctypes.symbol") if repr(numpy.int64(2)) != "2" else ()
AROUND: dict[str, Around] = {
    "mxnet": prepared,
    "mxnet.recordio": tobytes,
    "gluoncv": without_torch,
    **dict.fromkeys(OPERATORS, plain_numbers),
}


def load_mxnet() -> types.ModuleType:
    """Import mxnet.

    Returns
    -------
    module
        mxnet; the same module if it was imported before.

    Raises
    ------
    ImportError
        mxnet or distutils is not installed, or the import of mxnet fails.
    """
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


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of `AROUND`, so that they are executed in their contexts."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find a module of `AROUND` as other finders do, and no other module."""
        finders = [each for each in sys.meta_path if each is not self] if fullname in AROUND else []
        specs = (finder.find_spec(fullname, path, target) for finder in finders)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            execute = _execute_within(AROUND[fullname], spec.loader.exec_module)
            setattr(spec.loader, "exec_module", execute)  # noqa: B010
        return spec


def _execute_within(around: Around, execute: Callable[[types.ModuleType], None]) -> Callable[..., None]:
    def execute_within(module: types.ModuleType) -> None:
        with around(module):
            execute(module)

    return execute_within


mx: Any


def __getattr__(name: str) -> Any:
    """Import mxnet when ``mx`` is first read."""
    if name != "mx":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["mx"] = load_mxnet()
    return globals()["mx"]


sys.meta_path.insert(0, Finder())
if hasattr(sys.modules.get("mxnet"), "random"):  # pragma: no cover - in a process that imported it before
    add_seeder(sys.modules["mxnet"].random.seed)
