"""The trainers of a net on torch: clip gradients, and update parameters as MXNet's optimizers do."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ...errors import user_code
from ...gluon.optim.numbers import UpdateNumbers
from ...gluon.optim.trainers import Trainers as GluonTrainers
from ..from_gluon.optim.group import Column, Group, State
from ..from_gluon.optim.rules import RULES
from .gradients import Gradients
from .parameters import Parameters
from .tensors import on_device, on_host

OfTrainer = Mapping[str, torch.Tensor]


class Trainers:
    """Updates parameters for the trainers, whose own optimizers keep the options, schedules and counts.

    `newer` says whether states and parameters here are newer than those of the trainers and the net. `stale`
    says that other code may have loaded states into the trainers' optimizers, as between runs.
    """

    def __init__(self, trainers: GluonTrainers, parameters: Parameters) -> None:
        self._trainers, self.newer, self.stale = trainers, False, True
        self._added = trainers.added_gradients
        self._names: dict[tuple[str, ...], frozenset[str]] = {}  # by the trainers that are due
        self._updaters = {
            name: _Updater(
                parameters.numbers(trainers[name], list(held)),
                list(held),
                trainers.clip_norms.get(name),
                parameters,
            )
            for name, held in trainers.parameters.items()
        }

    def make_room(self, samples: int, gradients: Gradients) -> None:
        """Scale the gradients that wait, so that a batch of `samples` can add its own."""
        for name, factor in self._added.factors(samples).items():
            gradients.scale(self._trainers.parameters[name], factor)

    def due(self, step: int, samples: int, ends: bool, gradients: Gradients) -> list[str]:
        """Return the trainers that update after batch number `step`, as MXNet's trainers do.

        The gradients of other trainers are discarded, unless they accumulate.
        """
        trainers = self._trainers
        due = list(trainers.due(step, samples, ends))
        for name in trainers.waiting:
            if not trainers.rhythms[name].accumulate:
                gradients.drop(trainers.parameters[name])
        return due

    def left(self) -> list[str]:
        """Return the trainers whose gradients wait for batches that an epoch does not have any more."""
        return list(self._trainers.left())

    @property
    def accumulate(self) -> bool:
        """Whether a trainer accumulates gradients."""
        return any(rhythm.accumulate for rhythm in self._trainers.rhythms.values())

    def discard_added(self, due: Sequence[str], gradients: Gradients) -> None:
        """Discard the gradients that wait; the trainers that are `due` begin anew."""
        for name in self._added.waiting():
            gradients.drop(self._trainers.parameters[name])
        self._added.forget(due)

    def names(self, due: Sequence[str]) -> frozenset[str]:
        """Return the names of the parameters that some trainers update."""
        if tuple(due) not in self._names:
            names = self._trainers.parameters
            self._names[tuple(due)] = frozenset(name for trainer in due for name in names[trainer])
        return self._names[tuple(due)]

    def average(self, due: Sequence[str], gradients: Gradients) -> None:
        """Divide the gradients that trainers have accumulated by the samples of all their batches."""
        for name in due:
            share = self._added.share(name)
            if share != 1:
                gradients.scale(self._trainers.parameters[name], share)

    def update(self, due: Sequence[str], gradients: Gradients) -> None:
        """Clip gradients and update the parameters of the trainers that are due; then drop the gradients."""
        with torch.no_grad():
            clipped = {name: self._updaters[name].clip(gradients.tensors) for name in due}
            for name, of_trainer in clipped.items():
                with user_code(partial('trainers["{}"]'.format, name)):
                    self._updaters[name].update(of_trainer)
        for name in due:
            gradients.drop(self._trainers.parameters[name])
        self._added.forget(due, others=False)
        self.newer = True

    def take(self) -> None:
        """Copy the optimizers' states from the trainers."""
        self.stale = False
        for updater in self._updaters.values():
            updater.take()

    def take_if_stale(self) -> None:
        """Copy the optimizers' states from the trainers if other code may have loaded some."""
        if self.stale:
            self.take()

    def give_back(self) -> None:
        """Copy the optimizers' states to the trainers, unless they have newer ones; waits for the device."""
        self.take_if_stale()
        for updater in self._updaters.values():
            updater.give_back()
        self.newer = False


class _Updater:
    """Updates the parameters of one trainer."""

    def __init__(
        self, numbers: UpdateNumbers, names: Sequence[str], clip_norm: float | None, parameters: Parameters
    ) -> None:
        self._numbers, self._names, self._clip_norm = numbers, list(names), clip_norm
        self._parameters, self._rule = parameters, RULES[numbers.kind]
        self._states: dict[str, State] = {}

    def clip(self, gradients: OfTrainer) -> dict[str, torch.Tensor]:
        """Return the gradients of this trainer's parameters, clipped to its largest global norm."""
        reached = {name: gradients[name] for name in self._names if name in gradients}
        if self._clip_norm is None or not reached:
            return reached
        tensors = list(reached.values())
        total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)))
        factor = torch.clamp_max(self._clip_norm / (total + 1e-8), 1.0)
        return dict(zip(reached, torch._foreach_mul(tensors, factor)))

    def update(self, gradients: OfTrainer) -> None:
        """Update the parameters that have gradients."""
        places = [place for place, name in enumerate(self._names) if name in gradients]
        if not places:
            return
        names = [self._names[place] for place in places]
        rates, decays, counts = self._numbers.count(places)
        weights: Column = [self._parameters.tensors[name] for name in names]
        states = [self._state(name, weight) for name, weight in zip(names, weights)]
        of_names = [gradients[name] for name in names]
        self._rule.update(self._numbers.options, Group(weights, of_names, states, rates, decays, counts))

    def take(self) -> None:
        """Copy the states from the trainer's optimizer."""
        states = self._numbers.states()
        arrays = [array for state in states for array in _leaves(state)]
        tensors = iter(on_device(arrays, self._parameters.device))
        pairs = zip(self._names, states)
        self._states = {name: _like(state, tensors) for name, state in pairs if state is not None}

    def give_back(self) -> None:
        """Copy the states to the trainer's optimizer."""
        places = [place for place, name in enumerate(self._names) if name in self._states]
        states = [self._states[self._names[place]] for place in places]
        arrays = iter(on_host([tensor for state in states for tensor in _leaves(state)]))
        self._numbers.set_states(places, [_like(state, arrays) for state in states])

    def _state(self, name: str, weight: torch.Tensor) -> State:
        state = self._states.get(name)
        if state is None:  # momentum may have been raised from 0
            state = self._states[name] = self._rule.create(self._numbers.options, weight)
        return state


def _leaves(state: Any) -> list[Any]:
    """Return the arrays or tensors of a state in order."""
    if isinstance(state, tuple):
        return [leaf for part in state for leaf in _leaves(part)]
    return [] if state is None else [state]


def _like(state: Any, leaves: Iterator[Any]) -> Any:
    """Return a state with other leaves."""
    if isinstance(state, tuple):
        return tuple(_like(part, leaves) for part in state)
    return None if state is None else next(leaves)
