"""The engines that run an estimator's batches, by name."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ..errors import last_line

AUTO = "auto"
MODULES = {"mxnet": "multifit.gluon.runner", "torch": "multifit.torch.engine.runner"}
ENGINES = (AUTO, *MODULES)
CUDA_GRAPHS = "cudagraphs"
FORMATS = ("gluon", "onnx", "torch", "pt2")  # in which nets are exported
INSTALL = 'engine="torch" needs PyTorch: pip install torch'


def choose_engine(engine: str, context: Any, log_once: Callable[[str], None] = lambda line: None) -> str:
    """Return the engine's name.

    "auto" chooses MXNet, unless the context is PyTorch's name of a CUDA device, or a GPU that PyTorch can use
    and MXNet cannot; `log_once` then logs why.
    """
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


def engine_module(engine: str) -> Any:
    """Return the module of an engine; raises ImportError if it is not installed.

    The module has four functions. ``make_runner(setup, state, log_once)`` returns an estimator's
    :class:`Runner`. ``has(context)`` returns whether the engine can compute on a context, and
    ``host(context)`` the context on which the net's own parameters then are. ``be_deterministic()`` makes the
    process compute the same bits every time.
    """
    if engine == "torch" and find_spec("torch") is None:
        raise ImportError(INSTALL)
    try:
        return import_module(MODULES[engine])
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
