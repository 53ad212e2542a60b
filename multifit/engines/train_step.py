"""One training step, in six verbs: split, run, differentiate, reduce, update, measure."""

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..utils.stages import TRAIN
from .result import StepResult

Timer = Callable[..., AbstractContextManager[Any]]
"""``timer(phase, *detail)`` measures a phase of a step; the detail is a trainer's or a metric's name."""

_NOTHING: AbstractContextManager[Any] = nullcontext()


def untimed(*phase: str) -> AbstractContextManager[Any]:
    """Measure nothing."""
    return _NOTHING


class TrainStep:
    """Trains on one batch; `fit`, the profiler and the rate search all run this step.

    It is made once the first batch is checked, and calls only hooks that a handler has: a restarted session
    needs a new step. ``timer(phase, *detail)`` returns a context manager around each phase.
    """

    def __init__(self, session: Any, timer: Timer = untimed) -> None:
        hooks = session.hooks
        self._splitter, self._stage = session.splitter(TRAIN), session.stages[TRAIN]
        self._state, self._trainers, self._windows = session.state, session.trainers, session.windows
        self._timer = timer
        self._gradients = gradients_of(session, timer)
        self._hold_update = hooks.hold_update if hooks.active("hold_update") else None
        self._change_gradients = hooks.change_gradients if hooks.active("change_gradients") else None

    def __call__(self, raw: Any) -> Any:
        """Train on a batch, as the loader yielded it; return its result."""
        return self.train(self.split(raw))

    def train(self, batch: Any) -> Any:
        """Train on a batch; return its result."""
        result = self.run(batch)
        self.learn(result)
        self.measure(result)
        return result

    def learn(self, result: StepResult) -> None:
        """Update the parameters by a batch's gradients, unless a handler on any rank holds that back.

        All gradients are ready before the first trainer updates a parameter. A trainer with a slower rhythm
        updates at a later batch. If its update is held back, what it has added up is discarded.
        """
        trainers, samples = self._trainers, result.batch.total
        trainers.make_room(samples)
        self.differentiate(result)
        due = trainers.due(self._state.step, samples, self._windows.ends)
        holds = self._hold_update is not None and self._hold_update(loss=result.named()["loss"])
        if trainers.agree(holds, due):
            trainers.discard_held(due)
            return
        self._apply(due)
        if due:
            self._gradients.look_back(result)

    def finish(self) -> None:
        """Update by the gradients that wait for further batches, as the epoch has no more."""
        due = self._trainers.left_due()
        self._trainers.agree(False, due)
        self._apply(due)

    def _apply(self, due: Collection[str]) -> None:
        self.reduce(due)
        if self._change_gradients is not None:
            with self._timer("change"):
                self._change_gradients()
        self.update(due)

    # ---- the verbs

    def split(self, raw: Any) -> Any:
        """Name, cast and place the arrays of a batch; raises DataError if they are not as declared."""
        with self._timer("fetch"):
            return self._splitter.split(raw)

    def run(self, batch: Any) -> Any:
        """Run net, losses and metrics on a batch, and return the result."""
        with self._timer("forward"):
            self._trainers.check_frozen()
            return self._stage.run(batch, self._state)

    def differentiate(self, result: StepResult) -> None:
        """Compute the gradients of the objective, as handlers and a method of balancing change it."""
        self._gradients(result)

    def reduce(self, due: Collection[str]) -> None:
        """Add up the gradients of the trainers that are due, over batches, devices and ranks."""
        for name in due:
            with self._timer("reduce", name):
                self._trainers.reduce(name)
        self._trainers.add_up()

    def update(self, due: Collection[str]) -> None:
        """Clip the gradients of all trainers that are due; then update their parameters."""
        for name in self._trainers.clip_norms:
            if name in due:
                with self._timer("clip", name):
                    self._trainers.clip(name)
        for name in due:
            with self._timer("update", name):
                self._trainers.update(name)

    def measure(self, result: StepResult) -> None:
        """Add the batch to the figures that :meth:`run` did not measure; some wait for the device."""
        self._stage.measure(result, self._timer)


def gradients_of(session: Any, timer: Timer) -> "Summed":
    """Return how a session goes back from the losses."""
    if session.balancer is None:
        return Summed(session, timer)
    return (Compared if session.balancer.compares else Weighed)(session, timer)


class Summed:
    """Goes back from the sum of the losses."""

    def __init__(self, session: Any, timer: Timer) -> None:
        self._session, self._balancer, self._timer = session, session.balancer, timer
        self._hooks, self._changes = session.hooks, session.hooks.active("change_objective")

    def __call__(self, result: StepResult) -> None:
        """Compute the gradients of the objective, as handlers change it, on all devices."""
        with self._timer("backward"):
            if self._changes and not result.change_objective(self._hooks):
                names = self._hooks.names("change_objective")
                problem = f"a handler ({names}) adds to the objective, or takes from it, and it is not known"
                self._session.refuse_apart(f"{problem} for which", "task that is", "trainers that is")
            self._go_back(result)

    def _go_back(self, result: StepResult) -> None:
        self._session.backward(result)

    def look_back(self, result: StepResult) -> None:
        """After the update: do nothing."""


class Weighed(Summed):
    """Goes back from the losses that a method of balancing has weighed."""

    def __call__(self, result: StepResult) -> None:
        """Weigh the losses, then compute the gradients of their sum."""
        with self._timer("balance"):
            self._balancer.weigh(result, self._session.state)
        super().__call__(result)

    def look_back(self, result: StepResult) -> None:
        """Compute the batch's losses again after the update, if the method compares them."""
        if self._balancer.looks_back:
            with self._timer("balance"):
                self._balancer.after_update(self._session.again(result.batch))


class Compared(Summed):
    """Compares the gradients of tasks on the way back, and weighs them."""

    def _go_back(self, result: StepResult) -> None:
        session = self._session
        self._balancer.differentiate(result, session.state, session.trainers.scale, self._timer)
