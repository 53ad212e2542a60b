"""The fit loop: epochs over the training data, batch by batch; the first batch is the check."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator

from ..checks import batch_count, one_shot
from ..distributed import unwrapped
from ..engines import Runner, TrainStep
from ..errors import raise_problems
from ..events import AFTER_LAST_BATCH, TRAINING_EVENTS
from ..gluon.data.loaders import no_batch_problems
from ..gluon.data.shares import FirstBatches, Peeked
from ..gluon.data.worker_seeding import has_own_workers, seedable
from ..gluon.distributed.figures import join_figures
from ..gluon.engine import Engine
from ..gluon.steps.batch_pass import run_pass
from ..gluon.validation.dry_run import DryRun, dry_run
from ..gluon.validation.first_batches import first_batches
from ..gluon.validation.make_plan import make_plan
from ..log_once import LogOnce
from ..protocols import BatchResult
from ..sampling import TaskLoaders
from ..stages import EVALUATE, TRAIN
from .fit_setup import check_copies, check_monitors
from .handler_runner import HandlerRunner
from .run import Run
from .task_data import each_loader

OWN_WORKERS = (
    "the loader's workers cannot be seeded: if they draw random numbers, the resumed run is not bit for bit "
    "the same"
)


class FitLoop:
    """Trains one fit.

    The engine was just restarted, with the fit's hooks. What was logged so far goes into the plan. `val_data`
    is the first batch that handlers will evaluate, or one of each loader, which is checked with the first
    training batch; None without validation data.
    """

    def __init__(
        self,
        engine: Engine,
        runner: Runner,
        run: Run,
        handlers: HandlerRunner,
        log_once: LogOnce,
        val_data: Peeked | FirstBatches | None,
    ) -> None:
        self._engine, self._runner, self._run, self._handlers = engine, runner, run, handlers
        self._log_once, self._val_data = log_once, val_data
        self._firsts: FirstBatches | None = None  # of several loaders
        self._checked: DryRun | None = None  # of these
        self._reader = engine.readers[TRAIN]
        self._train_step: TrainStep | None = None  # made with the first batch, which is checked

    def read_tasks(self, data: Any) -> None:
        """Prepare the engine for what several loaders yield, if these train or validate.

        Raises SpecError or DataError if a loader is empty, or they do not have what the losses take.
        """
        if isinstance(self._val_data, FirstBatches):
            self._engine.read_tasks(EVALUATE, self._val_data.slots)
        if isinstance(data, TaskLoaders):
            self._engine.loaders = data
            self._firsts = first_batches(self._engine, TRAIN, data, "train_data")

    def check_tasks(self) -> None:
        """Check the first batches of several loaders; that of one alone is checked when it is trained on."""
        if self._firsts is not None:
            with self._runner.checking():
                self._checked = dry_run(self._engine, self._firsts, self._val_data)
            self._firsts = None

    def train(self, data: Any, fit_batch: Callable[[Any], BatchResult], checkpoint: Path | None) -> None:
        """Train until the run stops; with a checkpoint that was restored, the rest of its epoch first.

        `fit_batch` trains on one batch: :meth:`train_batch`, or the user's own method around it. Raises
        DataError if the data yields no batch.
        """
        if checkpoint is not None:
            self._finish_epoch(data, fit_batch, checkpoint)
        while not self._run.state.stopped:
            self._run.history.open_row()
            self._engine.stages[TRAIN].reset()
            batches = self._reader.iterate(data, self._run.state.epoch)
            self._train_epoch(data, _after(self._run.remember_order, batches), fit_batch)

    def train_batch(self, batch: Any) -> BatchResult:
        """Train on one batch; the first one is checked, and trained on only if everything fits."""
        if self._train_step is not None:
            return self._train_step(batch)
        checked = self._check(batch)
        self._train_step = self._runner.train_step()
        result = self._train_step.first(checked)
        self._engine.wait()  # so that memory of the check is free before graphs allocate theirs
        return result

    def _check(self, batch: Any) -> BatchResult:
        with self._runner.checking():
            run = dry_run(self._engine, batch, self._val_data if self._checked is None else None)
        check_monitors(self._engine, self._handlers.handlers, self._val_data is not None)
        check_copies(self._engine, self._handlers.handlers)
        plan = make_plan(self._engine, self._checked or run, self._log_once, trained=True)
        self._run.plan = self._runner.described(plan)
        self._val_data = self._checked = None
        return run.train

    def _finish_epoch(self, data: Any, fit_batch: Callable[[Any], BatchResult], checkpoint: Path) -> None:
        """Train the rest of the epoch in which a checkpoint was saved; its row of the history is open."""
        run, state = self._run, self._run.state
        loaders = [unwrapped(loader) for loader in each_loader("train_data", data).values()]
        if any(has_own_workers(loader) and not seedable(loader) for loader in loaders):
            self._log_once.logger.info(OWN_WORKERS)
        if state.seed is not None:
            self._reader.replay(data, state.epoch, run.seed_epoch)
        then = partial(run.restore, checkpoint)
        if run.epoch_complete:
            then()
        elif state.stopped:  # at a limit, or by a handler: the run is finished, and its last epoch ends
            self._train_epoch(data, _after(then, ()), fit_batch, state.batch + 1)
        else:
            batches = self._reader.iterate_from(data, state.batch + 1, then, state.epoch)
            self._train_epoch(data, _after(run.restore_order, batches), fit_batch, state.batch + 1)

    def _train_epoch(
        self, data: Any, batches: Iterable[Any], fit_batch: Callable[[Any], BatchResult], first: int = 0
    ) -> None:
        run, state, events, total = self._run, self._run.state, TRAINING_EVENTS, batch_count(data)
        run.epoch_complete = False
        self._handlers.emit(events.begin, batches=total)
        step = partial(self._step, fit_batch)
        with self._reader.in_use.reading(data):
            done = run_pass(batches, step, events, self._handlers, state, lambda: state.place, first)
        if not done:
            raise_problems(no_batch_problems("train_data", state.epoch, read=self._train_step is not None))
        if state.stopped and done > first:
            self._handlers.emit(AFTER_LAST_BATCH)
        # Handlers leave out what takes long, such as the validation, if the fit was interrupted by now.
        run.epoch_complete = not state.interrupted and (not state.stopped or done == total)
        join_figures(self._engine.world, self._engine.stages[TRAIN].figures)
        self._runner.publish()
        self._handlers.emit(events.end, complete=run.epoch_complete)
        self._runner.refresh()
        state.agree()
        state.epoch += 1
        if one_shot(data):
            state.end("the data is exhausted")

    def _step(self, fit_batch: Callable[[Any], BatchResult], batch: Any) -> BatchResult:
        if self._engine.hooks is None:
            return fit_batch(batch)
        with self._engine.hooks.step(batch):
            return fit_batch(batch)


def _after(first: Callable[[], None], batches: Iterable[Any]) -> Iterator[Any]:
    """Call a function when the first batch is asked for: handlers have seeded the epoch by then."""
    first()
    yield from batches
