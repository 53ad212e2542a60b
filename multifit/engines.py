"""The engines that run an estimator's batches, by name."""

from __future__ import annotations

from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Callable, ContextManager, Mapping, Protocol

from .balance import Sum
from .errors import last_line
from .plan import Plan
from .protocols import Array, BatchResult

AUTO = "auto"
RUNNERS = {"mxnet": "multifit.gluon.steps.runner", "torch": "multifit.torch.engine.runner"}
ENGINES = (AUTO, *RUNNERS)
CUDA_GRAPHS = "cudagraphs"
INSTALL = 'engine="torch" needs PyTorch: pip install "multifit[torch]"'


class TrainStep(Protocol):
    """Trains on a batch."""

    def __call__(self, raw: Any) -> BatchResult:
        """Train on a batch, as the loader yielded it."""

    def first(self, checked: Any) -> BatchResult:
        """Train on the first batch, which was checked."""


class Runner(Protocol):
    """Runs batches; MXNet, which every engine builds on, checks the first batch and traces the graphs.

    Within a :meth:`session`, an engine may hold the values of parameters itself. What an engine inherits from
    here is right if it does not.
    """

    def restart(self) -> None:
        """Begin a fit, or a loop without one."""

    def session(self) -> ContextManager[None]:
        """Return a block in which batches are run; sessions within it change nothing."""
        return nullcontext()

    def check(self, engine: Any, run: Any) -> None:
        """Raise SpecError or TrainerError for what an engine cannot train, after MXNet's dry run of it."""

    def checking(self) -> ContextManager[None]:
        """Return a block in which MXNet checks the first batch of a fit."""
        return nullcontext()

    def replacing(self, block: ContextManager[Any]) -> ContextManager[Any]:
        """Return a block in which the net has other values, as handlers set them."""
        return block

    def train_step(self) -> TrainStep:
        """Return what trains on a batch, once the first one was checked."""

    def evaluate_batch(self, raw: Any) -> BatchResult:
        """Measure losses and metrics on a batch; the first one is checked."""

    def predict(self, data: Any, gather: bool) -> dict[str, Any]:
        """Return every output by name."""

    def gradients(self) -> dict[str, dict[str, list[Array]]]:
        """Return the gradients that no update has used, by trainer and parameter."""

    def gradient_meter(self, method: Sum) -> Any:
        """Return what measures the tasks' gradients on batches, and leaves training as it is."""

    def publish(self) -> None:
        """Let the net and its trainers have the values that the last batch left."""

    def refresh(self) -> None:
        """Take the values of the net and its trainers, which handlers may have changed."""

    def described(self, plan: Plan) -> Plan:
        """Return a plan that says where batches are run."""
        return plan

    def check_tool(self, tool: str) -> None:
        """Raise ValueError if a tool, such as the profiler, does not work with this engine."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds of an engine beside its net and trainers; empty if nothing."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take what :meth:`state` returned."""


def choose_engine(engine: str, context: Any, log_once: Callable[[str], None] = lambda line: None) -> str:
    """Return the engine's name.

    "auto" is MXNet, unless the context is a CUDA device by torch's name, or a GPU that MXNet cannot use and
    torch can; `log_once` is then called with a line to log.
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


def runner_module(engine: str) -> Any:
    """Return the module of an engine; raises ImportError if it is not installed.

    It has ``Runner``, ``host``, ``has``, ``precision_of`` and ``arrays``.
    """
    if engine == "torch" and find_spec("torch") is None:
        raise ImportError(INSTALL)
    try:
        return import_module(RUNNERS[engine])
    except ImportError as error:
        raise ImportError(f"{INSTALL}: {last_line(error)}") from error


def _runs(engine: str, context: Any) -> bool:
    try:
        return bool(runner_module(engine).has(context))
    except ImportError:
        return False


def _is_of_torch(context: Any) -> bool:
    contexts = context if isinstance(context, (list, tuple)) else [context]
    return any(
        each.startswith("cuda") if isinstance(each, str) else type(each).__module__ == "torch"
        for each in contexts
    )
