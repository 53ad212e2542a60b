"""The trainers of a net: how often they update, and the phases of their step: reduce, clip, update."""

from collections.abc import Container, Iterator, Mapping
from typing import Any

from ...checks.trainers import AddedBatches, Rhythm, declared_rhythm, listing, rhythm_messages
from ...errors import Problem, quoted, suggest
from ..compat import mx
from ..user_code import user_code
from .gradients import (
    clip_gradients,
    discard_gradients,
    scale_gradients,
    set_grad_req,
    updated_parameters,
    zero_stale,
)
from .handle import TrainerHandle
from .parameters import trainable
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


class Trainers(Mapping[str, TrainerHandle]):
    """The trainers by name, each behind a :class:`TrainerHandle`.

    In a step, the gradients of all trainers must be reduced and clipped before the first trainer updates a
    parameter, so that a failure does not leave half a step.

    `clip_norms` are the largest global gradient norms of the trainers that clip. `parameters` are those that
    each trainer holds, by structural name. `options` are the options of optimizers that were declared by
    name. `rhythms` are those of the trainers that do not update after every batch; `waiting` names the
    trainers that do not update after the last batch. `handles` are all trainers. `added_gradients` are those
    of trainers that accumulate.
    """

    def __init__(
        self,
        trainers: Mapping[str, mx.gluon.Trainer],
        clip_norms: Mapping[str, float],
        parameters: Mapping[str, Mapping[str, mx.gluon.Parameter]],
        options: Mapping[str, Mapping[str, Any]],
        rhythms: Mapping[str, Rhythm],
    ) -> None:
        self._trainers, self.clip_norms = dict(trainers), dict(clip_norms)
        self.parameters, self.options = parameters, dict(options)
        self.handles = {name: TrainerHandle(name, trainer) for name, trainer in trainers.items()}
        self._updates = {name: FusedUpdate(trainer) for name, trainer in trainers.items()}
        self.rhythms, self.waiting = dict(rhythms), frozenset[str]()
        accumulating = [name for name, rhythm in rhythms.items() if rhythm.accumulate]
        self.added_gradients = AddedGradients({name: trainers[name] for name in accumulating})

    def __getitem__(self, name: str) -> TrainerHandle:
        if name not in self.handles:
            near = suggest(name, self.handles)
            raise KeyError(f"no trainer {quoted([name])}{near}; there are {quoted(self.handles)}")
        return self.handles[name]

    def __repr__(self) -> str:
        return f"Trainers({', '.join(self.handles)})"

    def __iter__(self) -> Iterator[str]:
        return iter(self._trainers)

    def __len__(self) -> int:
        return len(self._trainers)

    def updated(self, name: str) -> dict[str, mx.gluon.Parameter]:
        """Return the parameters that a trainer updates, by structural name, as their ``grad_req`` is now."""
        return trainable(self.parameters[name])

    def window(self, name: str) -> int:
        """Return the number of batches whose gradients a trainer adds up to an update."""
        return self.rhythms[name].window if name in self.rhythms else 1

    def make_room(self, samples: int) -> None:
        """Scale the gradients that wait, so that a batch of `samples` can add its own."""
        for name, factor in self.added_gradients.factors(samples).items() if self.rhythms else ():
            scale_gradients(updated_parameters(self._trainers[name]), factor)

    def due(self, step: int, samples: int, ends: bool) -> dict[str, TrainerHandle]:
        """Return the trainers that update after batch number `step` of the run, counted from 0.

        The batch has that many `samples`; `ends` says whether it is the last one of an epoch that leaves the
        trainers' windows incomplete. The gradients of other trainers are discarded, unless they accumulate.
        """
        if not self.rhythms:
            return self.handles
        self.added_gradients.remember()
        self.added_gradients.count(samples)
        self.waiting = frozenset(
            name for name, rhythm in self.rhythms.items() if self._waits(name, rhythm, step, ends)
        )
        for name in self.waiting:
            if not self.rhythms[name].accumulate:
                discard_gradients(updated_parameters(self._trainers[name]))
        return self._without(self.waiting)

    def _waits(self, name: str, rhythm: Rhythm, step: int, ends: bool) -> bool:
        if not rhythm.accumulate:
            return rhythm.waits(step)
        return not ends and self.added_gradients.batches(name) < rhythm.every

    def _without(self, names: Container[str]) -> dict[str, TrainerHandle]:
        return {name: handle for name, handle in self.handles.items() if name not in names}

    def left(self) -> dict[str, TrainerHandle]:
        """Return the trainers whose gradients wait for batches that an epoch does not have any more."""
        left = self.added_gradients.waiting()
        self.waiting = frozenset(name for name in self.handles if name not in left)
        return self._without(self.waiting)

    def discard_held(self, due: Container[str]) -> None:
        """Discard the gradients of an update that was held back; the trainers that are `due` begin anew.

        A later batch that does not reach a parameter would else update it by these. What the user adds up, by
        a ``grad_req`` of "add", stays.
        """
        waiting = self.added_gradients.waiting()
        for name in self.handles:
            parameters = updated_parameters(self._trainers[name])
            discard_gradients(p for p in parameters if name in waiting or p.grad_req != "add")
        self.added_gradients.forget(due)

    def reduce(self, name: str) -> None:
        """Add up a trainer's gradients over the devices.

        Gradients that were accumulated are first divided by the samples of all their batches.
        """
        trainer, share = self._trainers[name], self.added_gradients.share(name)
        if share != 1:
            scale_gradients(updated_parameters(trainer), share)
        start_kvstore(trainer)
        zero_stale(trainer)
        trainer.allreduce_grads()

    def clip(self, name: str) -> None:
        """Scale a trainer's gradients down to its largest global norm; it must have one."""
        clip_gradients(self._trainers[name], self.clip_norms[name])

    def update(self, name: str) -> None:
        """Update a trainer's parameters; their gradients must be reduced and clipped.

        Parameters that the batch did not reach have stale gradients, and stay as they are. An error of the
        optimizer or of its schedule names the trainer.
        """
        trainer = self._trainers[name]
        with user_code(lambda: f'trainers["{name}"]'):
            self._updates[name]()
        for parameter in trainer._params:
            if parameter.grad_req == "add":
                parameter.zero_grad()
        self.added_gradients.forget([name], others=False)

    def learning_rates(self) -> dict[str, float]:
        """Return the learning rates as figures: ``lr``, or ``lr_<trainer>`` if there are several."""
        if len(self) == 1:
            return {"lr": float(next(iter(self.values())).learning_rate)}
        return {f"lr_{name}": float(trainer.learning_rate) for name, trainer in self.items()}


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
