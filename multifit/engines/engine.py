"""What an engine is to the rest of the package: the base class of all engines, and what is passed to them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..distributed import World
from ..events import NO_HOOKS, TrainingHooks
from ..protocols import Array, BatchResult, Numbers
from ..sampling import TaskLoaders
from ..spec.plan import Plan
from ..stages import EVALUATE
from ..state import RunState
from .arrays import Arrays
from .first_batches import FirstBatches, first_batches
from .train_step import Timer, TrainStep, untimed

if TYPE_CHECKING:
    from .dry_run import DryRun
    from .session import Session
    from .snapshot import Snapshot


@dataclass(frozen=True)
class Setup:
    """The arguments of :class:`multifit.MultiEstimator`, from which an engine is made.

    `spec` may be a loss, from which the engine makes a TaskSpec.
    """

    net: Any
    spec: Any
    trainers: Any
    context: Any
    initializer: Any
    frozen: Any
    precision: str
    balance: Any
    compile: bool | str
    world: World
    accumulate: int = 1


class Engine(ABC):
    """Runs an estimator's batches: the base class of all engines.

    `engine` holds what it runs them with: the model, its trainers, the stages "train" and "evaluate" with
    their figures, the readers of loaders, and the hooks of the running fit. `snapshot` writes and reads
    checkpoints.

    Within :meth:`running`, an engine may hold the values of the parameters itself, instead of the net:
    :meth:`publish` then writes them into it. Methods that are not abstract suit an engine that computes with
    the net's own values.
    """

    saves_generators = False  # whether checkpoints hold the states of all random generators
    session: Session
    snapshot: Snapshot
    export_format: str  # if none is asked for

    @property
    def net(self) -> Any:
        """The net as the user gave it."""
        return self.session.model.net

    @abstractmethod
    def fork(self, state: RunState) -> Engine:
        """Return an engine for the same model and trainers, with figures and graphs of its own."""

    # ---- a fit

    def restart(self, hooks: TrainingHooks = NO_HOOKS, needs_outputs: bool = True) -> None:
        """Begin a fit, or a loop without one; `hooks` are those by which handlers change training steps.

        `needs_outputs` says whether somebody reads the outputs and losses of training. Raises SpecError if
        the net has other parameters than when the estimator was made.
        """
        self.session.restart(hooks, needs_outputs)

    @contextmanager
    def fit(self, hooks: TrainingHooks, needs_outputs: bool, batch_axis: int) -> Iterator[None]:
        """Return a context manager around a fit, which begins with a :meth:`restart`.

        Afterwards, no hooks are left, and all ranks have the same running statistics.
        """
        self.restart(hooks, needs_outputs)
        try:
            with self.session.samples_along(batch_axis), self.session.trainers.training():
                yield
            self.session.shared.average_statistics()  # handlers may have set them last, such as averages
        finally:
            self.session.hooks = NO_HOOKS

    @contextmanager
    def evaluation(self, needs_outputs: bool, batch_axis: int) -> Iterator[None]:
        """Return a context manager in which batches are measured, by the values that handlers choose."""
        session = self.session
        around: AbstractContextManager[Any] = nullcontext()
        if session.hooks.active("around_evaluation"):
            around = session.hooks.around("evaluation")
        with self.running(), session.samples_along(batch_axis), around:
            session.stages[EVALUATE].needs_outputs = needs_outputs
            if not session.world.alone:
                session.shared.average_statistics()
            yield

    def running(self) -> AbstractContextManager[None]:
        """Return a context manager in which batches are run; a session within another has no effect."""
        return nullcontext()

    def first_batches(self, stage: str, data: TaskLoaders, what: str) -> FirstBatches:
        """Read the first batch of each of several loaders, and prepare the stage for what they yield.

        `what` is their name in messages. Raises SpecError or DataError with all that is wrong.
        """
        return first_batches(self.session, stage, data, what)

    @abstractmethod
    def balance_classes(self, data: Any, ends: bool) -> None:
        """Count the classes of the training labels for losses with ``class_weights="balanced"``.

        `ends` says whether a pass over a loader that does not know its length ends.
        """

    @abstractmethod
    def dry_run(self, first: Any, val_data: Any) -> DryRun:
        """Check everything on a first batch, or on those of several loaders; nothing is updated.

        The first batch of `val_data` is evaluated. Raises SpecError, DataError or TrainerError with all that
        is wrong.
        """

    @abstractmethod
    def make_plan(self, run: DryRun, layers: bool = False) -> Plan:
        """Return the plan after the dry run of a batch."""

    def train_step(self, timer: Timer = untimed) -> TrainStep:
        """Return what trains on a batch; `timer` measures its phases. A restarted engine needs a new one."""
        return TrainStep(self.session, timer)

    @abstractmethod
    def evaluate_batch(self, raw: Any) -> BatchResult:
        """Measure losses and metrics on a batch; the first one is checked."""

    @abstractmethod
    def join_figures(self, stage: str, ended: bool = True) -> None:
        """Replace a stage's figures by those of all ranks together, at the end of a pass."""

    def publish(self) -> None:
        """Write the current values into the net, for others to read."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until the devices have done all their work."""

    def state(self) -> dict[str, Any]:
        """Return the state that a checkpoint holds besides the snapshot."""
        weights = self.session.balanced_weights
        return {"class_weights": {key: list(each) for key, each in weights.items()}} if weights else {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self.session.balanced_weights.update(state.get("class_weights", {}))

    def why_inexact(self) -> str:
        """Return why a resumed run may differ in the last bits, and how to avoid it; "" if it does not."""
        return ""

    # ---- what users and handlers ask for

    @abstractmethod
    def predict(
        self, data: Any, gather: bool, activation: Any, write: Callable[[str, Any, int], object] | None
    ) -> dict[str, Any]:
        """Return every output by name, with an activation applied.

        With `write`, call it with the name, the array and the number of samples of each batch's outputs.
        """

    @abstractmethod
    def export(self, folder: str | PathLike[str], data: Any, format: str) -> list[Path]:
        """Save the net, as it runs in evaluation, for use elsewhere."""

    @abstractmethod
    def values(self, gradients: bool = False) -> dict[str, Numbers]:
        """Return copies of all parameters and running statistics that have values, by name.

        With `gradients`, return those of the last batch instead.
        """

    @abstractmethod
    def set_values(self, values: Mapping[str, Any]) -> None:
        """Set parameters and running statistics by name; values are NumPy arrays, or the engine's own."""

    @property
    @abstractmethod
    def arrays(self) -> Arrays:
        """What handlers do with the engine's arrays."""

    @abstractmethod
    def gradients(self) -> dict[str, dict[str, list[Array]]]:
        """Return the gradients that no update has used yet, by trainer and parameter."""

    # ---- tools

    @abstractmethod
    def preserved(self) -> AbstractContextManager[None]:
        """Return a context manager after which parameters and trainers are as they were before."""

    @abstractmethod
    def trial_run(
        self, data: Any, name: str, tool: str
    ) -> AbstractContextManager[tuple[DryRun, Iterator[Any]]]:
        """Return a context manager in which a fork may train, and after which everything is as it was.

        It yields the dry run of the first batch, and an iterator over all batches. `name` and `tool` are for
        messages.
        """

    @abstractmethod
    def operator_times(self, run: Callable[[], Any], steps: int) -> tuple[list[Any], str]:
        """Return the times of the engine's operators in `run`, and the reason if there are none."""
