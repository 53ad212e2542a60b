"""One training step on torch.

Fetch, forward, balance, backward, combine, hold, average, reduce, change, clip, update, look back, measure.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from ...engines.windows import Windows
from ...errors import Problem, raise_problems
from ...events import TrainingHooks
from ...gluon.balance.make import of_kind
from ...gluon.data.batch import Batch
from ...gluon.engine import AnySplitter
from ...gluon.execution.result import StepResult
from ...state import RunState
from .backward import Backward
from .gradients import Gradients, JointGradients
from .parameters import Parameters
from .result import Result
from .scaling import Scaling
from .stage import Stage
from .trainers import Trainers


class TrainStep:
    """Trains on one batch.

    `hooks` call the handlers that change a step; `balancer` weighs the losses, if there is one.
    `check_trainers` returns why trainers and parameters do not fit each other. `windows` say whether the
    epoch ends. `gradients` are those that no trainer has used.
    """

    def __init__(
        self,
        splitter: AnySplitter,
        stage: Stage,
        trainers: Trainers,
        parameters: Parameters,
        scaling: Scaling,
        joint: JointGradients,
        state: RunState,
        hooks: TrainingHooks,
        check_trainers: Callable[[], Iterable[Problem]],
        windows: Windows,
        balancer: Any = None,
    ) -> None:
        self._splitter, self._stage, self._trainers = splitter, stage, trainers
        self._parameters, self._scaling, self._state = parameters, scaling, state
        self._joint, self._check_trainers, self._windows = joint, check_trainers, windows
        of_losses_and_gradients: tuple[Any, Any] = of_kind(balancer)
        self._of_losses, of_gradients = of_losses_and_gradients
        self._hooks = hooks
        self._backward = Backward(parameters, scaling, hooks, stage.gluon.separation, of_gradients, state)
        self.gradients = Gradients(parameters)

    def __call__(self, raw: Any) -> Result:
        """Train on a batch, as the loader yielded it."""
        return self.train(self._splitter.split(raw))

    def first(self, checked: StepResult) -> Result:
        """Train on the first batch, which MXNet has checked."""
        return self.train(checked.batch)

    def train(self, batch: Batch) -> Result:
        """Train on a batch that is named, cast and placed.

        Handlers may have frozen or unfrozen parameters since the last batch.
        """
        raise_problems(self._check_trainers())
        self._parameters.follow()
        self.gradients.keep_trained()
        self._trainers.take_if_stale()
        self._trainers.newer = True  # running statistics change, at least
        result = self._stage.run(batch, self._state)
        if self._of_losses is not None:
            self._of_losses.weigh(result, self._state)
        samples = batch.total
        assert samples is not None
        self._trainers.make_room(samples, self.gradients)
        self.gradients.add(self._backward(result))
        self._trainers.newer = True  # set again, because reading the parameters in a handler resets it
        due = self._trainers.due(self._state.step, samples, self._windows.ends, self.gradients)
        names, held_back, overflowed = self._agree(due, self.held_back(result))
        if not held_back:
            self.apply(due, names, overflowed)
            if due and not overflowed:
                self.look_back(batch)
        else:
            if self.gradients.added and not self._trainers.accumulate:
                self._scaling.remember(overflowed)
            else:
                self._trainers.discard_added(due, self.gradients)
                self._scaling.update(overflowed)
            self.gradients.drop_written()
        if result.captured:
            self.gradients.keep()
        self._stage.measure(result)
        return result

    def finish(self) -> None:
        """Update by the gradients that wait for further batches, as the epoch has no more."""
        due = self._trainers.left()
        names, _, overflowed = self._agree(due, held_back=False)
        self.apply(due, names, overflowed)

    def _agree(self, due: Sequence[str], held_back: bool) -> tuple[Collection[str], bool, bool]:
        """Return the names of the parameters that are due; and whether any rank holds back, or overflowed."""
        names = self._trainers.names(due)
        return names, *self._joint.agree(held_back, self._scaling.overflowed(), self.gradients, names)

    def apply(self, due: Sequence[str], names: Collection[str], overflowed: bool) -> None:
        """Update the parameters of the trainers that are due, which have these names."""
        self._trainers.average(due, self.gradients)
        self._joint.add_up(self.gradients, names)
        self.change()
        self._parameters.take_if_stale()
        self._trainers.take_if_stale()
        self.update(due, overflowed)

    def held_back(self, result: Result) -> bool:
        """Whether a handler holds back the update; it may then set values of the net."""
        if not self._hooks.active("hold_update"):
            return False
        self._parameters.give_back()
        held_back = self._hooks.hold_update(loss=result.on_host.named()["loss"])
        if held_back:
            self._parameters.take()
        return held_back

    def look_back(self, batch: Batch) -> None:
        """Compute the batch's losses again after the update, if the method of balancing compares them."""
        if self._of_losses is not None and self._of_losses.looks_back:
            self._of_losses.after_update(self._stage.again(batch, self._state))

    def change(self) -> None:
        """Let handlers change the gradients in place."""
        if self._hooks.active("change_gradients"):
            self._hooks.change_gradients()
            self.gradients.take_changes()

    def update(self, due: Sequence[str], overflowed: bool) -> None:
        """Update the parameters of the trainers that are due, unless gradients in float16 have overflowed.

        If they have, the gradients that other trainers have accumulated are discarded too: they are not
        finite either.
        """
        if overflowed:
            self._trainers.discard_added(due, self.gradients)
            self.gradients.clear()
        else:
            self._trainers.update(due, self.gradients)
        self._scaling.update(overflowed)
