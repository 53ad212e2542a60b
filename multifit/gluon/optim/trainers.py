"""The trainers of a net, and the three phases of their step: reduce, clip, update."""

from __future__ import annotations

from typing import Any, Container, Iterator, Mapping

from ...errors import TrainerError, quoted, suggest
from ..compat import mx
from .fused_updates import FusedUpdate
from .gradients import (
    clip_gradients,
    discard_gradients,
    mark_used,
    scale_gradients,
    updated_parameters,
    zero_stale,
)
from .named_schedule import named_schedule
from .parameters import trainable
from .rhythms import AddedGradients, Rhythm
from .trainer_handle import TrainerHandle
from .zero_rates import refuse_next_rates


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

    def discard_added(self, due: Container[str]) -> None:
        """Discard the gradients that wait; the trainers that are `due` begin anew."""
        for name in self.added_gradients.waiting():
            discard_gradients(updated_parameters(self._trainers[name]))
        self.added_gradients.forget(due)

    def reduce(self, name: str) -> None:
        """Add up a trainer's gradients over the devices, unless its kvstore does that itself.

        Gradients that were accumulated are first divided by the samples of all their batches.
        """
        trainer, share = self._trainers[name], self.added_gradients.share(name)
        if share != 1:
            scale_gradients(updated_parameters(trainer), share)
        on_kvstore = updates_on_kvstore(trainer)
        zero_stale(trainer, on_kvstore)
        if not on_kvstore:
            trainer.allreduce_grads()

    def clip(self, name: str) -> None:
        """Scale a trainer's gradients down to its largest global norm; it must have one."""
        clip_gradients(self._trainers[name], self.clip_norms[name])

    def update(self, name: str) -> None:
        """Update a trainer's parameters; their gradients must be reduced and clipped.

        Parameters that the batch did not reach have stale gradients, and stay as they are. Raises
        TrainerError if the trainer's schedule returns something other than a rate, or returns 0 and the
        optimizer divides by the rate.
        """
        trainer = self._trainers[name]
        on_kvstore = updates_on_kvstore(trainer)
        with named_schedule(name, trainer.optimizer):
            refuse_next_rates(name, trainer.optimizer)
            if on_kvstore:
                trainer.step(1, ignore_stale_grad=True)
                mark_used(updated_parameters(trainer))  # MXNet does not
            else:
                self._updates[name]()
        for parameter in trainer._params:
            if parameter.grad_req == "add":
                parameter.zero_grad()
        self.added_gradients.forget([name], others=False)

    def calls(self, name: str) -> int | None:
        """Return the number of calls that update a trainer's parameters; None if the trainer decides that."""
        on_kvstore = updates_on_kvstore(self._trainers[name])
        return None if on_kvstore else self._updates[name].calls

    def check_gradient_access(self) -> None:
        """Raise TrainerError if handlers cannot change gradients between their reduction and the update.

        They cannot if there are several devices, and a kvstore both adds up the gradients and updates the
        parameters.
        """
        closed = [
            name
            for name, trainer in self._trainers.items()
            if updates_on_kvstore(trainer) and len(trainer._contexts) > 1
        ]
        if closed:
            raise TrainerError(
                f"trainers: {quoted(closed)} update on the kvstore, where no handler can change gradients; "
                "give a TrainerSpec, or gluon.Trainer(..., update_on_kvstore=False); row_sparse parameters "
                "can only be updated there: train them on one device"
            )

    def learning_rates(self) -> dict[str, float]:
        """Return the learning rates as figures: ``lr``, or ``lr_<trainer>`` if there are several."""
        if len(self) == 1:
            return {"lr": float(next(iter(self.values())).learning_rate)}
        return {f"lr_{name}": float(trainer.learning_rate) for name, trainer in self.items()}


def refuse_distributed(trainers: Mapping[str, TrainerHandle], tool: str) -> None:
    """Raise TrainerError if a trainer's states are on servers, from which `tool` could not restore them."""
    for name, trainer in trainers.items():
        if trainer._distributed:
            raise TrainerError(
                f'{tool}: trainer "{name}" is distributed: its servers hold states that cannot be restored; '
                f"run {tool} in a process without them"
            )


def updates_on_kvstore(trainer: mx.gluon.Trainer) -> bool:
    """Whether a trainer's kvstore updates the parameters, instead of the trainer itself."""
    start_kvstore(trainer)
    return is_on_kvstore(trainer)


def start_kvstore(trainer: mx.gluon.Trainer) -> None:
    """Create a trainer's kvstore, unless that is done.

    MXNet reads all parameters for it; those that are frozen and that no batch has reached have no values.
    """
    if not trainer._kv_initialized:
        parameters = trainer._params
        trainer._params = [parameter for parameter in parameters if parameter._data is not None]
        try:
            trainer._init_kvstore()
        finally:
            trainer._params = parameters


def is_on_kvstore(trainer: mx.gluon.Trainer) -> bool:
    """Whether a trainer has a kvstore already, and that updates the parameters."""
    return bool(trainer._kv_initialized and trainer._kvstore and trainer._update_on_kvstore)
