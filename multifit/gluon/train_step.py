"""One training step in named phases.

Fetch, forward, balance, backward, hold, reduce, change, clip, update, look back, measure.
"""

from collections.abc import Container, Iterable, Mapping
from typing import Any

from ..engines import Timer, untimed
from ..errors import raise_problems
from ..stages import TRAIN
from .check.first_batch import run_batch
from .data.batch import Batch
from .optim.preserve_state import kept_statistics
from .session import Session
from .step.changed_objective import change_objective
from .step.result import StepResult


class TrainStep:
    """Trains on one batch; `fit`, the profiler and the rate search all run this step.

    A restarted engine needs a new step. ``timer(phase, *detail)`` returns a context manager around each
    phase.
    """

    def __init__(self, session: Session, timer: Timer = untimed) -> None:
        self._requests = session.trainers.frozen.requests()
        self._splitter, self._stage = session.splitter(TRAIN), session.stages[TRAIN]
        self._state = session.state
        balancer = session.balancer
        compares = balancer is not None and balancer.compares
        self._of_losses: Any = None if compares else balancer
        self._of_gradients: Any = balancer if compares else None
        self._parameters = session.model.parameters
        self._trainers, self._hooks, self._timer = session.trainers, session.hooks, timer
        self._gradients = session.gradients
        self._windows = session.windows

    def __call__(self, raw: Any) -> StepResult:
        """Train on a batch, as the loader yielded it."""
        result = self.forward(self.fetch(raw))
        self.learn(result)
        self.measure(result)
        return result

    def first(self, checked: StepResult) -> StepResult:
        """Train on the first batch, whose forward pass, checks and metrics are done already."""
        self.learn(checked)
        return checked

    def fetch(self, raw: Any) -> Batch:
        """Name, cast and place the arrays of a batch; raises DataError if they are not as declared."""
        with self._timer("fetch"):
            return self._splitter.split(raw)

    def forward(self, batch: Batch) -> StepResult:
        """Run net, losses and device metrics; also checks a first batch that was not checked yet."""
        with self._timer("forward"):
            self._check_frozen()
            return run_batch(self._stage, batch, self._state)

    def _check_frozen(self) -> None:
        """Check the trainers again if handlers have frozen or unfrozen parameters since the last batch."""
        frozen = self._trainers.frozen
        if self._requests != frozen.requests():
            problems = self._trainers.build()
            raise_problems(problems or self._trainers.unreached())
            self._requests = frozen.requests()

    def learn(self, result: StepResult) -> None:
        """Compute the gradients on all devices; update the parameters, unless a handler holds that back.

        All gradients are ready before the first trainer updates a parameter. A trainer with a slower rhythm
        updates at a later batch. If its update is held back, what it has added up is discarded.
        """
        trainers, samples = self._trainers.get(), result.batch.total
        assert samples is not None
        self.balance(result)
        trainers.make_room(samples)
        self.backward(result)
        due = trainers.due(self._state.step, samples, self._windows.ends)
        hooks = self._hooks
        held_back = hooks.active("hold_update") and hooks.hold_update(loss=result.named()["loss"])
        if self._gradients.agree(held_back, due):
            trainers.discard_held(due)
            return
        self.apply(due)
        if due:
            self.look_back(result)

    def finish(self) -> None:
        """Update by the gradients that wait for further batches, as the epoch has no more."""
        due = self._trainers.get().left()
        self._gradients.agree(False, due)
        self.apply(due)

    def apply(self, due: Mapping[str, Any]) -> None:
        """Update the parameters of the trainers that are due."""
        self.reduce(due)
        self.change()
        self.clip(due)
        self.update(due)

    def balance(self, result: StepResult) -> None:
        """Weigh the losses, as a method of balancing says."""
        if self._of_losses is not None:
            with self._timer("balance"):
                self._of_losses.weigh(result, self._state)

    def backward(self, result: StepResult) -> None:
        """Compute the gradients of the objective, as handlers and a method of balancing change it."""
        with self._timer("backward"):
            if self._hooks.active("change_objective"):
                change_objective(result, self._hooks, self._stage.separation)
            if self._of_gradients is not None:
                self._of_gradients.differentiate(result, self._state, timer=self._timer)
            elif result.objectives:  # else this process has no samples
                result.differentiate()

    def reduce(self, due: Iterable[str]) -> None:
        """Add up the gradients over the devices, and over the processes that train together.

        `due` are the trainers that update at this batch.
        """
        trainers = self._trainers.get()
        for name in due:
            with self._timer("reduce", name):
                trainers.reduce(name)
        self._gradients.add_up()

    def change(self) -> None:
        """Let handlers change the gradients in place."""
        if self._hooks.active("change_gradients"):
            with self._timer("change"):
                self._hooks.change_gradients()

    def clip(self, due: Container[str]) -> None:
        """Clip the gradients of each trainer that is due to its largest norm, if it has one."""
        trainers = self._trainers.get()
        for name in trainers.clip_norms:
            if name in due:
                with self._timer("clip", name):
                    trainers.clip(name)

    def update(self, due: Iterable[str]) -> None:
        """Update the parameters of the trainers that are due."""
        trainers = self._trainers.get()
        for name in due:
            with self._timer("update", name):
                trainers.update(name)

    def look_back(self, result: StepResult) -> None:
        """Compute the batch's losses again after the update, if the method of balancing compares them."""
        if self._of_losses is not None and self._of_losses.looks_back:
            with self._timer("balance"), kept_statistics(self._parameters.values()):
                self._of_losses.after_update(self._stage.again(result.batch, self._state))

    def measure(self, result: StepResult) -> None:
        """Update the metrics that are computed on the host; they may wait for the engine."""
        self._stage.measure(result, self._timer)
