"""The loop: a fit's epochs, an epoch's batches, and where a fit goes on within one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator

from ..checks import one_shot
from ..errors import UserCodeError, raise_problems
from ..events import TRAINING_EVENTS, PassEvents, TrainingHooks
from ..gluon.data.loaders import batch_count, iterate, iterate_from, no_batch_problems, replay_epochs
from ..gluon.data.worker_seeding import has_own_workers, seedable
from ..gluon.validation.dry_run import check_monitors, dry_run, make_plan
from ..plan import Plan
from ..state import RunState
from .kept import Kept

__all__ = ["Loop"]


class Loop(Kept):
    """The passing half of an estimator: epochs over data, batch by batch."""

    plan: Plan | None
    fit_batch: Callable[[Any], Any]
    _shown: Callable[[PassEvents], bool]
    _hooks: TrainingHooks | None
    _proved: bool
    _val_data: Any

    def _train_epoch(self, data: Any) -> None:
        self.history.open_row()
        self._engine.stages["train"].reset()
        self._train_on(data, self._in_order(iterate(data, self.state.epoch), self._keep_order))

    def _train_rest(self, data: Any, checkpoint: Path | None) -> None:
        """Come to where a checkpoint was written, and train the rest of its epoch.

        The epoch's row of the history is open, its sums are there.
        """
        if checkpoint is None:
            return
        if has_own_workers(data) and not seedable(data):
            self.logger.info(
                "the loader has workers that go their own way: where these draw random numbers, the run is "
                "not bit for bit the same"
            )
        if self.state.seed is not None:
            replay_epochs(data, self.state.epoch, self._seed_epoch)
        if self._epoch_over:
            self._restore_random(checkpoint)
        elif not self.state.stopped:
            done = self.state.batch + 1
            then = partial(self._restore_random, checkpoint)
            rest = iterate_from(data, done, then, self.state.epoch)
            self._train_on(data, self._in_order(rest, self._restore_order), done)

    def _train_on(self, data: Any, batches: Iterable[Any], done: int = 0) -> None:
        self._epoch_over, total = False, batch_count(data)
        done = self._epoch(batches, total, self._step, TRAINING_EVENTS, self.state, done)
        if not done:
            raise_problems(no_batch_problems("train_data", self.state.epoch, self._proved))
        self._epoch_over = not self.state.stopped or done == total
        self._audience.tell(TRAINING_EVENTS.end)
        self.state.epoch += 1
        if one_shot(data):
            self.state.stop("the data is exhausted")

    @staticmethod
    def _in_order(batches: Iterable[Any], first: Callable[[], None]) -> Iterator[Any]:
        # When the first batch is asked for: handlers have seeded the epoch by then, the loader has not drawn.
        first()
        yield from batches

    def _step(self, batch: Any) -> Any:
        with self._around("step"):
            return self.fit_batch(batch)

    def _around(self, what: str) -> AbstractContextManager[None]:
        return nullcontext() if self._hooks is None else self._hooks.around(what)

    def _epoch(
        self,
        batches: Iterable[Any],
        total: int | None,
        step: Callable[[Any], Any],
        events: PassEvents,
        state: RunState,
        count: int = 0,
    ) -> int:
        """Pass once over the data: the same for training and evaluating, which differ by their step."""
        self._audience.tell(events.begin, batches=total)
        self._engine.stages[events.stage].shown = self._shown(events)
        for batch in batches:
            state.batch = count
            self._audience.tell(events.batch_begin, batch=batch)
            try:
                result = step(batch)
            except UserCodeError as error:
                error.at(state.place if state is self.state else f"evaluating, batch {count + 1}")
                raise
            count += 1
            state.step += 1
            state.samples += result.batch.samples
            self._audience.tell_result(events.batch_end, batch, result)
            if state.stopped:
                break
        return count

    def _prove(self, batch: Any) -> Any:
        proof = dry_run(self._engine, batch, self._val_data)
        check_monitors(self._engine, self._audience.handlers, self._val_data is not None)
        self.plan = make_plan(self._engine, proof, self._notices)
        self._proved, self._val_data = True, None
        return proof.train
