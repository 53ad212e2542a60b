"""The phases of a step of Gluon's trainers, and the gradients that they add up from batch to batch."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ... import engines
from ...checks.trainers import AddedBatches, Rhythm, declared_rhythm, listing, rhythm_messages
from ...distributed import ALONE, World
from ...engines.trainers import OwnGradients
from ...errors import Problem
from ..compat import mx
from ..user_code import user_code
from .gradients import (
    FreshGradients,
    clip_gradients,
    discard_gradients,
    scale_gradients,
    set_grad_req,
    updated_parameters,
    zero_stale,
)
from .handle import TrainerHandle
from .updates import FusedUpdate


def rhythm_problems(
    where: str, declared: Any, accumulate: int, parameters: Mapping[str, mx.gluon.Parameter]
) -> list[Problem]:
    """Return why the gradients of a trainer cannot be added up; `where` is its name in messages."""
    rhythm = declared_rhythm(declared, accumulate)
    messages = rhythm_messages(where, rhythm, accumulate)
    sparse = [name for name, p in parameters.items() if p._grad_stype != "default"]
    if sparse and rhythm.accumulate:
        messages.append(
            f"{where}: accumulates the gradients of {rhythm.every} batches, but those of {listing(sparse)} "
            "are sparse, and MXNet cannot add such gradients; build the layer with sparse_grad=False, or "
            "leave accumulate out"
        )
    return [Problem("trainer", message) for message in messages]


class AddedGradients(AddedBatches):
    """The gradients of trainers that accumulate, which are added up from batch to batch.

    `trainers` are those that accumulate.
    """

    def __init__(self, trainers: Mapping[str, mx.gluon.Trainer]) -> None:
        super().__init__(trainers)
        self._trainers = trainers
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


class Bound(NamedTuple):
    """Trainers that were just built, with their largest norms.

    `parameters` are those that each trainer holds, by structural name. `options` are the options of
    optimizers that were declared by name. `rhythms` are those of trainers that do not update after every
    batch.
    """

    trainers: Mapping[str, mx.gluon.Trainer]
    clip_norms: dict[str, float]
    parameters: Mapping[str, Mapping[str, mx.gluon.Parameter]]
    options: Mapping[str, Mapping[str, Any]]
    rhythms: dict[str, Rhythm]


class Trainers(engines.Trainers):
    """Gluon's trainers; `parameters` and `options` are as for :class:`Bound`.

    A gradient that a batch has written stays fresh until a trainer uses it; only fresh gradients count.
    """

    added_gradients: AddedGradients

    def __init__(self, declared: Any, accumulate: int, world: World = ALONE) -> None:
        super().__init__(declared, accumulate, OwnGradients() if world.alone else FreshGradients(world))
        self._take(Bound({}, {}, {}, {}, {}))

    def _take(self, bound: Bound) -> None:
        self._trainers, self.clip_norms, self.parameters, self.options, self.rhythms = bound
        self.handles = {name: TrainerHandle(name, trainer) for name, trainer in bound.trainers.items()}
        self._updates = {name: FusedUpdate(trainer) for name, trainer in bound.trainers.items()}
        accumulating = [name for name, rhythm in bound.rhythms.items() if rhythm.accumulate]
        self.added_gradients = AddedGradients({name: bound.trainers[name] for name in accumulating})

    def learning(self, name: str) -> list[Any]:
        """Return the parameters that a trainer updates now."""
        return updated_parameters(self._trainers[name])

    def due(self, step: int, samples: int, ends: bool) -> list[str]:
        """Return the trainers that update after a batch, as for any library."""
        if self.rhythms:
            self.added_gradients.remember()
        return super().due(step, samples, ends)

    def reduce(self, name: str) -> None:
        """Add up a trainer's gradients over the batches of an update, and over the devices."""
        super().reduce(name)
        trainer = self._trainers[name]
        start_kvstore(trainer)
        zero_stale(trainer)
        trainer.allreduce_grads()

    def clip(self, name: str) -> None:
        """Scale a trainer's gradients down to its largest global norm; it must have one."""
        clip_gradients(self._trainers[name], self.clip_norms[name])

    def _update(self, name: str) -> None:
        """Update a trainer's parameters; an error of the optimizer or of its schedule names the trainer."""
        with user_code(lambda: f'trainers["{name}"]'):
            self._updates[name]()
        for parameter in self._trainers[name]._params:
            if parameter.grad_req == "add":
                parameter.zero_grad()

    def _multiply(self, name: str, factor: float) -> None:
        scale_gradients(self.learning(name), factor)

    def _discard(self, name: str, keeps_own_sums: bool = False) -> None:
        discard_gradients(p for p in self.learning(name) if not keeps_own_sums or p.grad_req != "add")


def start_kvstore(trainer: mx.gluon.Trainer) -> None:
    """Create the kvstore that adds up a trainer's gradients over its devices, unless that is done.

    MXNet reads all parameters for it; those that are frozen and that no batch has reached have no values.
    """
    if not trainer._kv_initialized:
        parameters = trainer._params
        trainer._params = [parameter for parameter in parameters if parameter._data is not None]
        try:
            trainer._init_kvstore()
        finally:
            trainer._params = parameters
