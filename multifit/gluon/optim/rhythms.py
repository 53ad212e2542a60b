"""How often trainers update parameters, and the gradients of trainers that wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Container, Mapping, NamedTuple, Sequence

import numpy as np

from ...errors import Problem
from ..compat import mx
from .gradients import discard_gradients, set_grad_req, updated_parameters
from .parameters import listing


class Rhythm(NamedTuple):
    """A trainer updates once in `every` batches; with `accumulate`, as if they were one batch."""

    every: int
    accumulate: bool = False

    def waits(self, step: int) -> bool:
        """Whether the trainer does not update after batch number `step` of the run, counted from 0."""
        return (step + 1) % self.every > 0

    @property
    def window(self) -> int:
        """The number of batches whose gradients are added up to an update."""
        return self.every if self.accumulate else 1


def declared_rhythm(declared: Any, accumulate: int) -> Rhythm:
    """Return the rhythm of a declared trainer; `accumulate` is that of the estimator, for all trainers.

    What is not valid is reported with the trainer's other problems.
    """
    every, adds = getattr(declared, "every", 1), getattr(declared, "accumulate", False)
    if isinstance(every, (int, np.integer)) and every > 1:
        return Rhythm(int(every), isinstance(adds, (bool, np.bool_)) and bool(adds))
    return Rhythm(accumulate, accumulate > 1)


def rhythm_problems(
    where: str, declared: Any, accumulate: int, parameters: Mapping[str, mx.gluon.Parameter]
) -> list[Problem]:
    """Return why the gradients of a trainer cannot be added up; `where` is its name in messages."""
    messages, rhythm = [], declared_rhythm(declared, accumulate)
    if accumulate > 1 and rhythm != Rhythm(accumulate, True):
        messages.append(
            f"{where}: every={rhythm.every}, but MultiEstimator(accumulate={accumulate}) is for all "
            f"trainers; leave every= out, or give every={accumulate}, accumulate=True to each TrainerSpec "
            "that accumulates"
        )
    sparse = [name for name, p in parameters.items() if p._grad_stype != "default"]
    if sparse and rhythm.accumulate:
        messages.append(
            f"{where}: accumulates the gradients of {rhythm.every} batches, but those of {listing(sparse)} "
            "are sparse, and MXNet cannot add such gradients; build the layer with sparse_grad=False, or "
            "leave accumulate out"
        )
    return [Problem("trainer", message) for message in messages]


@dataclass
class _Added:
    """The batches since a trainer's last update, their samples, and the samples of the last batch."""

    batches: int = 0
    samples: int = 0
    last: int = 0


class AddedGradients:
    """The gradients of trainers that accumulate, which are added up from batch to batch.

    A batch's gradient is a mean over its samples, and must count with their number. But a batch adds its
    gradient as it is, so what waits is scaled to its size before: it is always the sum over all samples,
    divided by the number of samples of the last batch. `trainers` are those that accumulate.
    """

    def __init__(self, trainers: Mapping[str, mx.gluon.Trainer]) -> None:
        self._trainers = trainers
        self._added = {name: _Added() for name in trainers}
        # the parameters whose grad_req is "write" outside of training, and their lists of arrays
        self._arrays: dict[mx.gluon.Parameter, tuple[Any, Any]] = {}

    def begin(self) -> None:
        """Let MXNet add gradients up instead of overwriting them.

        Called again after a handler has set a ``grad_req``. If that was "add" only for the time of training,
        and the handler has set "write", what was added so far still counts.
        """
        parameters = [each for trainer in self._trainers.values() for each in trainer._params]
        for parameter in (each for each in parameters if each.grad_req == "write"):
            set_grad_req(parameter, "add")
            values, gradients = self._arrays.get(parameter, (None, None))
            if gradients and values is parameter._data:  # Gluon has replaced the gradients alone
                for old, new in zip(gradients, parameter._grad):
                    old.copyto(new)
            self._arrays[parameter] = parameter._data, parameter._grad

    def remember(self) -> None:
        """Remember the arrays of gradients, as the first batch may have made them."""
        self._arrays = {each: (each._data, each._grad) for each in self._arrays}

    def declared_request(self, parameter: mx.gluon.Parameter) -> str:
        """Return a parameter's ``grad_req`` as it is outside of training."""
        return "write" if parameter in self._arrays and parameter.grad_req == "add" else parameter.grad_req

    def end(self) -> None:
        """Let MXNet overwrite gradients again, and discard those of a fit that failed."""
        for parameter in self._arrays:
            if parameter.grad_req == "add":  # else a handler has frozen it
                set_grad_req(parameter, "write")
        for name in self.waiting():
            parameters = updated_parameters(self._trainers[name])
            discard_gradients(each for each in parameters if each._data is not None)
        self.forget(self._trainers)
        self._arrays = {}

    def factors(self, samples: int) -> dict[str, float]:
        """Return by what the waiting gradients are multiplied before a batch of `samples` adds its own."""
        waiting = {name: added.last for name, added in self._added.items() if added.samples}
        return {name: last / max(samples, 1) for name, last in waiting.items() if last != samples}

    def count(self, samples: int) -> None:
        """Count a batch whose gradients were added."""
        for added in self._added.values():
            added.batches += 1
            added.samples += samples
            added.last = max(samples, 1)

    def batches(self, name: str) -> int:
        """Return the number of batches since a trainer's last update."""
        return self._added[name].batches

    def share(self, name: str) -> float:
        """Return what a trainer's gradients are multiplied by before its update: the last batch's share."""
        added = self._added.get(name)
        return added.last / max(added.samples, 1) if added else 1.0

    def waiting(self) -> list[str]:
        """Return the trainers whose gradients wait for further batches."""
        return [name for name, added in self._added.items() if added.samples]

    def forget(self, updated: Container[str], others: bool = True) -> None:
        """Forget what was added: trainers that were `updated` begin anew, `others` lose gradients only."""
        for name, added in self._added.items():
            if name in updated:
                added.batches = 0
            if name in updated or others:
                added.samples = added.last = 0

    def state(self) -> dict[str, list[int]]:
        """Return what was counted, for a checkpoint; {} if nothing was."""
        counts = {name: [each.batches, each.samples, each.last] for name, each in self._added.items()}
        return {name: numbers for name, numbers in counts.items() if numbers[0]}

    def load(self, state: Mapping[str, Sequence[int]]) -> None:
        """Restore what :meth:`state` returned."""
        self._added = {name: _Added(*state.get(name, ())) for name in self._trainers}
