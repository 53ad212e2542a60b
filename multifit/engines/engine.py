"""What an engine is to the rest of the package: the base class of all engines, and what is passed to them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..distributed import World
from ..distributed.log_once import LogOnce
from ..handlers.dispatcher import NO_HOOKS, TrainingHooks
from ..handlers.state import RunState
from ..sampling import TaskLoaders
from ..spec.plan import Plan
from ..utils.errors import raise_problems
from ..utils.protocols import Array, BatchResult, Numbers
from ..utils.seeding import preserve_rng
from ..utils.stages import EVALUATE, TRAIN
from .arrays import Arrays
from .class_counts import balance_classes
from .dry_run import measured_apart
from .first_batches import FirstBatches, first_batches
from .prediction import Piece, Signature, input_signatures, predict
from .registry import FORMATS
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

    `session` holds what it runs them with: the model, its trainers, the stages "train" and "evaluate" with
    their figures, the readers of loaders, and the hooks of the running fit. `snapshot` writes and reads
    checkpoints, and `arrays` is what handlers do with the engine's arrays.

    Within :meth:`running`, an engine may hold the values of the parameters itself, instead of the net:
    :meth:`publish` then writes them into it. Methods that are not abstract suit an engine that computes with
    the net's own values.
    """

    saves_generators = False  # whether checkpoints hold the states of all random generators
    session: Session
    snapshot: Snapshot
    arrays: Arrays
    export_format: str  # if none is asked for
    formats: Collection[str] = FORMATS  # in which it writes nets itself

    def __init__(self, session: Session, snapshot: Snapshot, arrays: Arrays, log_once: LogOnce) -> None:
        self.session, self.snapshot, self.arrays, self._log_once = session, snapshot, arrays, log_once

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
        """Return a context manager in which batches are run; one within another has no effect."""
        return nullcontext()

    def first_batches(self, stage: str, data: TaskLoaders, what: str) -> FirstBatches:
        """Read the first batch of each of several loaders, and prepare the stage for what they yield.

        `what` is their name in messages. Raises SpecError or DataError with all that is wrong.
        """
        return first_batches(self.session, stage, data, what)

    def balance_classes(self, data: Any, ends: bool) -> None:
        """Count the classes of the training labels for losses with ``class_weights="balanced"``.

        `ends` says whether a pass over a loader that does not know its length ends.
        """
        balance_classes(self.session, data, ends, self._log_once, self._takes_lengths)

    @abstractmethod
    def _takes_lengths(self, loss: Any) -> bool:
        """Whether the second label of a loss holds the lengths of sequences, which are padded."""

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

    def join_figures(self, stage: str, ended: bool = True) -> None:
        """Replace a stage's figures by those of all ranks together, at the end of a pass."""
        session = self.session
        session.stages[stage].figures.join(session.world, ended)
        judged = stage == TRAIN and ended and session.world.first
        if judged and session.balancer is not None and (message := session.balancer.never_met()):
            self._log_once.warning(message)

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

    # ---- evaluation and prediction

    def evaluate_batch(self, raw: Any) -> BatchResult:
        """Measure losses and metrics on a batch; the first one is checked.

        Raises SpecError or DataError if the batch or the net does not fit the spec.
        """
        session = self.session
        stage, batch = session.stages[EVALUATE], session.splitter(EVALUATE).split(raw)
        is_first = not stage.checked
        if is_first:
            self._begin_evaluation(batch)
            with preserve_rng(), measured_apart([stage]):
                self._check_evaluation(batch)
        result: BatchResult = stage.run(batch, session.state)
        stage.measure(result)
        raise_problems(stage.figures.name_problems() if is_first else [])
        return result

    def predict(
        self, data: Any, gather: bool, activation: Any, write: Callable[[str, Any, int], object] | None
    ) -> dict[str, Any]:
        """Return every output by name, with an activation applied; see :func:`prediction.predict`."""
        with self.running():
            how = gather, activation, write, self.predict_batch, self._class_axis
            return predict(self.session, data, *how)

    @abstractmethod
    def predict_batch(self, raw: Any) -> list[Piece]:
        """Return a piece for each device with samples; labels may be missing.

        Raises SpecError or DataError if the batch or the net does not fit the spec.
        """

    @abstractmethod
    def _begin_evaluation(self, batch: Any) -> None:
        """Give parameters their shapes, and all ranks the same values."""

    @abstractmethod
    def _check_evaluation(self, batch: Any) -> None:
        """Check the first batch of an evaluation; raises all problems."""

    @abstractmethod
    def _class_axis(self, loss: Any) -> int | None:
        """Return the axis of the classes in what a softmax loss takes; None for other losses."""

    # ---- what users and handlers ask for

    @abstractmethod
    def export(self, folder: str | PathLike[str], data: Any, format: str) -> list[Path]:
        """Save the net, as it runs in evaluation, for use elsewhere; see :meth:`MultiEstimator.export`."""

    def input_signatures(self, data: Any) -> Iterator[list[Signature]]:
        """Yield the signatures of inputs that a net can be exported with, the best first.

        They are of the batches of `data`, or else of evaluations, then of training, as far as there are any.
        """
        return input_signatures(self.session, data, self.predict_batch, self._input_casts)

    @abstractmethod
    def _input_casts(self, stage: Any) -> Mapping[str, Any]:
        """Return the dtypes to which a stage casts inputs, by name."""

    @abstractmethod
    def values(self, gradients: bool = False) -> dict[str, Numbers]:
        """Return copies of all parameters and running statistics that have values, by name.

        With `gradients`, return those of the last batch instead.
        """

    @abstractmethod
    def set_values(self, values: Mapping[str, Any]) -> None:
        """Set parameters and running statistics by name; values are NumPy arrays, or the engine's own."""

    def gradients(self) -> dict[str, dict[str, list[Array]]]:
        """Return the gradients that no update has used yet, by trainer and parameter."""
        gradients: dict[str, dict[str, list[Array]]] = self.session.trainers.gradients()
        return gradients

    # ---- tools

    @abstractmethod
    def preserved(self) -> AbstractContextManager[None]:
        """Return a context manager after which parameters and trainers are as they were before."""

    @contextmanager
    def trial_run(self, data: Any, name: str) -> Iterator[tuple[DryRun, Iterator[Any]]]:
        """Check a fork on its first batch, let it train, and restore net, trainers and random states.

        Yields the dry run of the first batch, and an iterator over all batches, including the first. `name`
        is that of the data in messages. Raises SpecError, DataError or TrainerError if something does not
        fit.
        """
        session = self.session
        with self.running(), preserve_rng(), session.trainers.training():
            first, batches = session.readers[TRAIN].peek_first(data, name)
            # before anything is copied: the net may not be initialised
            run = self.dry_run(first, None)
            with self.preserved():
                yield run, batches

    @abstractmethod
    def operator_times(
        self, run: Callable[[], Any], steps: int
    ) -> tuple[list[tuple[str, float, float]], str]:
        """Run steps under the library's own profiler.

        Returns each operator's name, calls per step and milliseconds per step, the slowest first; and the
        reason if there are none, else "".
        """
