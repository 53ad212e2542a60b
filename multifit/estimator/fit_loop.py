"""The fit loop: epochs over the training data, batch by batch; the first batch is the check."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ..distributed.log_once import LogOnce
from ..engines import Engine, FirstBatches, Peeked
from ..handlers.handler import AFTER_LAST_BATCH, TRAINING_EVENTS
from ..sampling import TaskLoaders
from ..spec.checks.data import batch_count, no_batch_problems, one_shot
from ..utils.errors import raise_problems
from ..utils.protocols import BatchResult
from ..utils.seeding import set_random_state
from ..utils.stages import EVALUATE, TRAIN
from .batch_pass import run_pass
from .data import each_loader
from .fit_setup import check_monitors
from .handler_runner import HandlerRunner
from .run import Run

OWN_WORKERS = (
    "the loader's workers cannot be seeded: if they draw random numbers, the resumed run is not bit for bit "
    "the same"
)


class FitLoop:
    """The training loop of one fit.

    `engine` was just restarted with the fit's hooks. The messages of `log_once` so far go into the plan.
    `train_data` is None outside of a fit, where batches are given one by one. `val_batch` is the first
    validation batch, or the first one of each loader. It is checked together with the first training batch,
    and is None if there is no validation data.
    """

    def __init__(
        self,
        engine: Engine,
        run: Run,
        handlers: HandlerRunner,
        log_once: LogOnce,
        train_data: Any = None,
        val_batch: Peeked | FirstBatches | None = None,
    ) -> None:
        self._engine, self._session, self._run, self._handlers = engine, engine.session, run, handlers
        self._log_once, self._data, self._val_batch = log_once, train_data, val_batch
        self._firsts: FirstBatches | None = None  # of several loaders, until they are checked
        self._checked: Any = None  # the dry run of these first batches
        self._reader = engine.session.readers[TRAIN]
        self._train_step: Any = None  # made after the check of the first batch

    def read_tasks(self) -> None:
        """Prepare the engine for the batches of several loaders, if the training or validation data has them.

        Raises SpecError or DataError if a loader is empty, or if the loaders lack what a loss takes.
        """
        if isinstance(self._val_batch, FirstBatches):
            self._session.read_tasks(EVALUATE, self._val_batch.slots)
        if isinstance(self._data, TaskLoaders):
            self._session.loaders = self._data
            self._firsts = self._engine.first_batches(TRAIN, self._data, "train_data")

    def check_tasks(self) -> None:
        """Check the first batches of several loaders; a single loader's is checked when it is trained on."""
        if self._firsts is not None:
            self._checked = self._engine.dry_run(self._firsts, self._val_batch)
            self._firsts = None

    def train(self, fit_batch: Callable[[Any], BatchResult], checkpoint: Path | None) -> None:
        """Train until the run stops; after a checkpoint was restored, train the rest of its epoch first.

        `fit_batch` trains on one batch: :meth:`train_batch`, or the user's own method around it. Raises
        DataError if the data yields no batch.
        """
        if checkpoint is not None:
            self._finish_epoch(fit_batch, checkpoint)
        while not self._run.state.stopped:
            self._run.history.open_row()
            self._session.stages[TRAIN].reset()
            batches = self._reader.iterate(self._data, self._run.state.epoch)
            self._train_epoch(_after(self._run.remember_order, batches), fit_batch)

    def train_batch(self, batch: Any) -> BatchResult:
        """Train on one batch; the first one is checked, and trained on only if everything fits."""
        result: BatchResult
        if self._train_step is not None:
            if self._run.seeded:
                self._run.seed_step()
            result = self._train_step(batch)
            return result
        checked = self._check(batch)
        self._train_step = self._engine.train_step()
        self._engine.wait()  # so that the check's memory is free before the graphs allocate theirs
        self._run.seed_step()
        result = self._train_step.train(checked.batch)
        return result

    def _check(self, batch: Any) -> BatchResult:
        val_batch = self._val_batch if self._checked is None else None
        run = self._engine.dry_run(batch, val_batch)
        sets = getattr(self._val_batch, "sets", ())
        check_monitors(self._session, self._handlers.handlers, self._val_batch is not None, sets)
        self._run.plan = self._engine.make_plan(self._checked or run)
        self._val_batch = self._checked = None
        result: BatchResult = run.train
        return result

    def _finish_epoch(self, fit_batch: Callable[[Any], BatchResult], checkpoint: Path) -> None:
        """Train the rest of the epoch in which a checkpoint was saved; the history already has its row."""
        run, state, data = self._run, self._run.state, self._data
        if not all(map(self._reader.repeats_workers, each_loader("train_data", data).values())):
            self._log_once.logger.info(OWN_WORKERS)
        if state.seed is not None:
            self._reader.replay(data, state.epoch, run.seed_epoch)
        then, first, windows = partial(self._restore, checkpoint), state.batch + 1, self._session.windows
        random = windows.random  # if the next batches were read before the checkpoint was saved

        def before_rest() -> None:
            set_random_state(random) if random else then()
            if windows.reads_ahead:
                run.seed_read(first)

        if run.epoch_complete:
            then()
        elif state.stopped:  # by a limit or a handler: the run is finished, only its last epoch must end
            self._train_epoch(_after(then, ()), fit_batch, first)
        else:
            batches = _after(
                run.restore_order, self._reader.iterate_from(data, first, before_rest, state.epoch)
            )
            self._train_epoch(batches, fit_batch, first, then if random else None)

    def _train_epoch(
        self,
        batches: Iterator[Any],
        fit_batch: Callable[[Any], BatchResult],
        first: int = 0,
        resume: Callable[[], None] | None = None,
    ) -> None:
        run, state, events, total = self._run, self._run.state, TRAINING_EVENTS, batch_count(self._data)
        run.epoch_complete = False
        self._handlers.emit(events.begin, batches=total)
        windows, around = self._session.windows, self._session.hooks.active("around_step")
        step = partial(self._step, fit_batch) if around else fit_batch
        if windows.reads_ahead:
            batches = windows.read(batches, self._handlers.batches_left, run.seed_read, first, resume)
        done = run_pass(batches, step, events, self._handlers.dispatcher, state, lambda: state.place, first)
        if not done:
            raise_problems(no_batch_problems("train_data", state.epoch, read=self._train_step is not None))
        if state.stopped and done > first:
            self._handlers.emit(AFTER_LAST_BATCH)
        if self._session.trainers.left:  # the epoch ended within a window
            (self._train_step or self._engine.train_step()).finish()
        windows.begin()
        # If the fit was interrupted, the handlers skip what takes long, such as the validation.
        run.epoch_complete = not state.interrupted and (not state.stopped or done == total)
        self._engine.join_figures(TRAIN, run.epoch_complete)
        self._engine.publish()
        self._handlers.emit(events.end, complete=run.epoch_complete)
        state.agree()
        state.epoch += 1
        if one_shot(self._data):
            state.end("the data is exhausted")

    def _restore(self, checkpoint: Path) -> None:
        """Set the random generators to what they were when a checkpoint was saved."""
        self._engine.snapshot.read_random(checkpoint)
        if self._run.state.seed is not None:
            self._run.reseed()

    def _step(self, fit_batch: Callable[[Any], BatchResult], batch: Any) -> BatchResult:
        with self._session.hooks.around("step"):
            return fit_batch(batch)


def _after(first: Callable[[], None], batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches; call `first` when the first one is requested, after handlers have seeded the epoch."""
    first()
    yield from batches
