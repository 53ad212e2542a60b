"""Give another engine the numbers of a trainer's optimizer: options, rates, counts and states."""

from __future__ import annotations

from typing import Any, Iterable, Sequence

from ..compat import mx
from ..data.arrays import host_view, new_array
from ..waiting import wait_for_operators
from .named_schedule import named_schedule
from .trainer_handle import TrainerHandle
from .zero_rates import refuse_rates


class UpdateNumbers:
    """The numbers with which another engine updates a trainer's parameters; the optimizer keeps them.

    So the schedule, the controls of a trainer, and its checkpoints are the same for all engines.

    Parameters
    ----------
    handle : TrainerHandle
        The trainer; its own update is never called.
    parameters : sequence of gluon.Parameter
        The parameters that it updates. `places` below are those in this sequence; the trainer may number
        them differently.
    """

    def __init__(self, handle: TrainerHandle, parameters: Sequence[mx.gluon.Parameter]) -> None:
        trainer = handle.trainer
        self._name, self._trainer, self.options = handle.name, trainer, trainer.optimizer
        self._names = [parameter.name for parameter in parameters]

    @property
    def kind(self) -> str:
        """The name of the optimizer's class, in lower case."""
        return type(self._trainer.optimizer).__name__.lower()

    def count(self, places: Sequence[int]) -> tuple[list[float], list[float], list[int]]:
        """Count an update of some parameters; return the rate, the weight decay and the count of each.

        If the schedule returns no rate, or one that the optimizer cannot use, the error names the trainer.
        """
        optimizer, indices = self._trainer.optimizer, self._indices(places)
        self.options, optimizer.rescale_grad = optimizer, self._trainer._scale
        optimizer._set_current_context(0)
        optimizer._update_count(indices)
        counts = optimizer._index_update_count
        with named_schedule(self._name, optimizer):
            rates = optimizer._get_lrs(indices)
        refuse_rates(self._name, optimizer, indices, rates)
        return rates, optimizer._get_wds(indices), [counts[i] for i in indices]

    def states(self) -> list[Any]:
        """Return each parameter's state in NumPy arrays; None where there is none yet; waits for the engine.

        The arrays share the memory of the state: copy what you keep, and do not write to them.
        """
        wait_for_operators()
        states = self._trainer._updaters[0].states
        indices = self._indices(range(len(self._names)))
        return [_in_numpy(states.get(index)) for index in indices]

    def set_states(self, places: Sequence[int], states: Sequence[Any]) -> None:
        """Set the states of some parameters, as :meth:`states` returns them; waits for the engine."""
        wait_for_operators()
        updater = self._trainer._updaters[0]
        for index, state in zip(self._indices(places), states):
            updater.states[index] = _written(updater.states.get(index), state)
            updater.states_synced[index] = True

    def _indices(self, places: Iterable[int]) -> list[int]:
        """Return the trainer's own numbers of parameters, which change if it gets further parameters."""
        known = self._trainer._param2idx
        return [known[self._names[place]] for place in places]


def _in_numpy(state: Any) -> Any:
    """Return a state in NumPy arrays."""
    if isinstance(state, (tuple, list)):
        return type(state)(_in_numpy(part) for part in state)
    if state is None:
        return None
    return host_view(state, idle=True) if state.stype == "default" else state.asnumpy()


def _written(before: Any, state: Any) -> Any:
    """Return a state in NDArrays: those from before, with new values, if these fit, else new ones."""
    if isinstance(state, (tuple, list)):
        parts = before if isinstance(before, (tuple, list)) else ()
        return type(state)(_written(*pair) for pair in zip((*parts, *[None] * len(state)), state))
    if state is None:
        return None
    if getattr(before, "stype", "") == "default":
        view = host_view(before, idle=True)
        if view.shape == state.shape and view.dtype == state.dtype:
            view[...] = state
            return before
    return new_array(state)
