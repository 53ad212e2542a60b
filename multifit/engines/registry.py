"""The engines that run an estimator's batches, by name."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ..utils.errors import SpecError
from ..utils.text import last_line, quoted, shown, suggest

AUTO = "auto"
MODULES = {"mxnet": "multifit.gluon.engine", "torch": "multifit.torch.from_gluon.engine"}
NATIVE = "multifit.torch.engine"  # for PyTorch's own nets
NETS = {"mxnet.gluon.block.Block": "mxnet", "torch.nn.modules.module.Module": "torch"}  # and their libraries
ENGINES = (AUTO, *MODULES)
CUDA_GRAPHS = "cudagraphs"
FORMATS = ("gluon", "onnx", "torch", "pt2")  # in which nets are exported
PRECISIONS = ("float32", "bfloat16", "float16")
INSTALL = ' needs PyTorch: pip install "gluon-multifit[torch]"'


def library_of(net: Any) -> str:
    """Return the library of a net, "mxnet" or "torch", which it needs not import.

    Raises SpecError for anything but an instance of a Block or a Module.
    """
    for kind in type(net).__mro__:
        library = NETS.get(f"{kind.__module__}.{kind.__qualname__}")
        if library is not None:
            return library
    raise SpecError(
        f"net is {shown(net)}, not a torch.nn.Module or gluon.Block; give the net itself, an instance"
    )


def choose_engine(
    engine: str, context: Any, log_once: Callable[[str], None] = lambda line: None, library: str = "mxnet"
) -> str:
    """Return the engine's name, for a net of a library.

    A net of PyTorch runs with PyTorch. For a net of Gluon, "auto" chooses MXNet, unless the context is
    PyTorch's name of a CUDA device, or a GPU that PyTorch can use and MXNet cannot; `log_once` then logs why.
    Raises ValueError if the engine cannot run the net, or the context is a text that names no devices.
    """
    if library == "torch":
        if engine == "mxnet":
            raise ValueError('engine="mxnet" runs Gluon nets, not a torch.nn.Module; leave engine out')
        return library
    if engine != AUTO:
        return engine
    if _is_of_torch(context):
        log_once(f'engine: torch, as context is "{context}"')
        return "torch"
    if not _runs("mxnet", context) and _runs("torch", context):
        log_once(f"engine: torch, as MXNet cannot compute on {context}")
        return "torch"
    return "mxnet"


def needs_torch(compile: bool | str) -> bool:
    """Return whether an estimator's argument `compile` asks for what only PyTorch does."""
    return compile not in (False, AUTO)


def precision_name(name: object) -> str:
    """Return the name of a precision; raises ValueError if there is none."""
    if not isinstance(name, str) or name not in PRECISIONS:
        valid = f"{suggest(name, PRECISIONS)}; valid are {quoted(PRECISIONS)}"
        raise ValueError(f"precision is {shown(name)}{valid}")
    return name


def engine_module(engine: str, library: str = "mxnet", what: str = 'engine="torch"') -> Any:
    """Return the module of an engine, for nets of a library; raises ImportError if it is not installed.

    The module has four functions. ``make_engine(setup, state, log_once)`` returns an estimator's
    :class:`Engine`. ``has(context)`` returns whether the engine can compute on a context, and
    ``host(context)`` where the net's own parameters then are: a list of MXNet's contexts, or PyTorch's
    device. ``be_deterministic()`` makes the process compute the same bits every time. That of PyTorch for
    Gluon nets also has ``export(engine, folder, data, format)``, which writes a net that MXNet runs. `what`
    needs the engine, in the error.
    """
    if engine == "torch" and find_spec("torch") is None:
        raise ImportError(what + INSTALL)
    try:
        return import_module(NATIVE if library == "torch" else MODULES[engine])
    except ImportError as error:
        raise ImportError(f'engine="{engine}" cannot be imported: {last_line(error)}') from error


def _runs(engine: str, context: Any) -> bool:
    try:
        return bool(engine_module(engine).has(context))
    except ImportError:
        return False


def _is_of_torch(context: Any) -> bool:
    contexts = context if isinstance(context, (list, tuple)) else [context]
    return any(
        each.startswith("cuda") if isinstance(each, str) else type(each).__module__ == "torch"
        for each in contexts
    )
