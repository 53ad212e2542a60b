"""What an engine does, as the rest of the package sees it."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, Callable, ContextManager, Iterator, Mapping, Protocol, Sequence

from ..balance import Sum
from ..events import NO_HOOKS, TrainingHooks
from ..protocols import Array, BatchResult
from ..sampling import TaskLoaders
from ..spec.plan import Plan
from ..state import RunState
from .engine import Engine
from .first_batch import FirstBatches
from .snapshot import Snapshot
from .timing import Timer, untimed


class TrainStep(Protocol):
    """Trains on a batch."""

    def __call__(self, raw: Any) -> BatchResult:
        """Train on a batch, as the loader yielded it."""

    def first(self, checked: Any) -> BatchResult:
        """Train on the first batch, which was checked and measured."""

    def finish(self) -> None:
        """Update by the gradients that wait for further batches, as the epoch has no more."""


class PhasedStep(Protocol):
    """A train step whose phases can be called one by one."""

    def __call__(self, raw: Any) -> BatchResult:
        """Train on a batch, as the loader yielded it."""

    def fetch(self, raw: Any) -> Any:
        """Name, cast and place the arrays of a batch."""

    def forward(self, batch: Any) -> Any:
        """Run net, losses and metrics."""

    def learn(self, result: Any) -> None:
        """Compute the gradients, and update the parameters."""


class DryRun(Protocol):
    """What was computed from the first batches when they were checked."""

    @property
    def train(self) -> Any: ...  # the result of the first training batch


class Runner(Protocol):
    """Runs an estimator's batches; `engine` is what it runs them with.

    Within a :meth:`session`, the engine may hold the values of the parameters itself, instead of the net:
    :meth:`publish` and :meth:`refresh` keep both in agreement.
    """

    @property
    def engine(self) -> Engine: ...
    @property
    def snapshot(self) -> Snapshot: ...
    def fork(self, state: RunState) -> Runner:
        """Return a runner for the same model and trainers, with figures and graphs of its own."""

    # ---- a fit

    def restart(self, hooks: TrainingHooks = NO_HOOKS) -> None:
        """Begin a fit, or a loop without one; `hooks` are those by which handlers change training steps.

        Raises SpecError if the net has other parameters than when the estimator was made.
        """

    def session(self) -> ContextManager[None]:
        """Return a context manager in which batches are run; a session within another has no effect."""

    def first_batches(self, stage: str, data: TaskLoaders, what: str) -> FirstBatches:
        """Read the first batch of each of several loaders, and prepare the stage for what they yield.

        `what` is their name in messages. Raises SpecError or DataError with all that is wrong.
        """

    def checking(self) -> ContextManager[None]:
        """Return a context manager in which the first batch of a fit is checked."""

    def dry_run(self, first: Any, val_data: Any) -> DryRun:
        """Check everything on a first batch, or on those of several loaders; nothing is updated.

        The first batch of `val_data` is evaluated. Raises SpecError, DataError or TrainerError with all that
        is wrong.
        """

    def check(self, run: Any) -> None:
        """After a dry run without a fit, raise SpecError or TrainerError if the engine cannot train."""

    def make_plan(self, run: Any, trained: bool) -> Plan:
        """Return the plan after the dry run of a batch; `trained` says whether the batch is trained on."""

    def train_step(self) -> TrainStep:
        """Return the train step, once the first batch was checked."""

    def evaluate_batch(self, raw: Any) -> BatchResult:
        """Measure losses and metrics on a batch; the first one is checked."""

    def join_figures(self, stage: str, ended: bool = True) -> None:
        """Replace a stage's figures by those of all ranks together, at the end of a pass."""

    def replacing(self, block: ContextManager[Any]) -> ContextManager[Any]:
        """Return a context manager around `block`, in which handlers may replace the net's values."""

    def publish(self) -> None:
        """Write the engine's current values into the net and its trainers, for others to read."""

    def refresh(self) -> None:
        """Read the values of the net and its trainers again, as handlers may have changed them."""

    def wait(self) -> None:
        """Wait until the devices have done all their work."""

    def state(self) -> dict[str, Any]:
        """Return the state that a checkpoint holds besides the snapshot; {} if there is none."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""

    def why_inexact(self) -> str:
        """Return why a resumed run may differ in the last bits, and how to avoid it; "" if it does not."""

    # ---- what users and handlers ask for

    def predict(self, data: Any, gather: bool) -> dict[str, Any]:
        """Return every output by name."""

    def export(self, folder: str | PathLike[str], data: Any, format: str) -> list[Path]:
        """Save the net, as it runs in evaluation, for use elsewhere."""

    def gradients(self) -> dict[str, dict[str, list[Array]]]:
        """Return the gradients that no update has used yet, by trainer and parameter."""

    def gradient_meter(self, method: Sum) -> Any:
        """Return a meter that measures the tasks' gradients on batches, without changing the training."""

    def figure_metrics(self, stage: str) -> list[Any]:
        """Return a stage's metrics, then its objective, as Gluon metrics that read the figures."""

    def figures_in_handlers(self, handlers: Sequence[object]) -> ContextManager[None]:
        """Return a context manager in which Gluon's handlers read figures in place of their metrics."""

    # ---- tools

    def check_tool(self, tool: str) -> None:
        """Raise ValueError if a tool, such as the profiler, does not work with this engine."""

    def trial_run(self, data: Any, name: str, tool: str) -> ContextManager[tuple[DryRun, Iterator[Any]]]:
        """Return a context manager in which a fork may train, and after which everything is as it was.

        It yields the dry run of the first batch, and an iterator over all batches. `name` and `tool` are for
        messages.
        """

    def phased_step(self, timer: Timer = untimed) -> PhasedStep:
        """Return a train step for tools, whose phases are timed."""

    def forward_variants(self, batch: Any) -> dict[str, Callable[[Any], object]]:
        """Return functions that run the net on a batch: alone ("net"), with "losses", and with "all" figures.

        Returns {} if handlers change the outputs. `batch` is a first batch, which is checked.
        """

    def operator_times(self, run: Callable[[], Any], steps: int) -> tuple[list[Any], str]:
        """Return the times of the engine's operators in `run`, and the reason if there are none."""
