"""Parameters' values, and the numbers of a trainer's optimizer, for another engine: in NumPy's arrays."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..compat import mx
from ..data.arrays import host_view, new_array
from ..waiting import wait_for_operators
from .handle import TrainerHandle


def values_of(parameters: Mapping[str, mx.gluon.Parameter]) -> dict[str, np.ndarray]:
    """Return the values of the parameters that have values; waits for the engine once.

    The arrays share the memory of the parameters, if possible: copy what you keep, and do not write to them.
    """
    wait_for_operators()
    present = {name: p for name, p in parameters.items() if p._data is not None}
    return {
        name: host_view(p._data[0], idle=True) if _is_plain(p) else p._data[0].asnumpy()
        for name, p in present.items()
    }


def set_values(parameters: Mapping[str, mx.gluon.Parameter], values: Mapping[str, np.ndarray]) -> None:
    """Set the values of parameters on all of their devices; this also works while autograd records.

    Waits for the engine once, and then writes to the memory of the arrays. ``set_data`` takes .3 ms for each
    parameter, as the engine copies one after the other.
    """
    wait_for_operators()
    written: dict[Any, list[Any]] = defaultdict(list)
    with mx.autograd.pause(train_mode=mx.autograd.is_training()):
        for name, value in values.items():
            parameter = parameters[name]
            if _takes(parameter, value):
                for array in parameter._data:
                    host_view(array, idle=True)[...] = value
                written[value.dtype] += parameter._data
            else:
                parameter.set_data(new_array(value, mx.cpu()))
        # Operators of oneDNN keep a copy of weights in a layout of their own until an operator has written to
        # them: one operator writes all arrays of a dtype to themselves.
        for arrays in written.values():
            mx.nd.amp_multicast(*arrays, num_outputs=len(arrays), out=arrays)


def _is_plain(parameter: mx.gluon.Parameter) -> bool:
    """Whether all values of a parameter are in the memory of the host."""
    return all(each.device_type == "cpu" for each in parameter._ctx_list)


def _takes(parameter: mx.gluon.Parameter, value: np.ndarray) -> bool:
    """Whether a value can be written to a parameter as it is."""
    if parameter._data is None or not _is_plain(parameter):
        return False
    return parameter.shape == value.shape and parameter.dtype == value.dtype and value.size > 0


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
        self._trainer, self.options = trainer, trainer.optimizer
        self._names = [parameter.name for parameter in parameters]

    @property
    def kind(self) -> str:
        """The name of the optimizer's class, in lower case."""
        return type(self._trainer.optimizer).__name__.lower()

    def count(self, places: Sequence[int]) -> tuple[list[float], list[float], list[int]]:
        """Count an update of some parameters; return the rate, the weight decay and the count of each."""
        optimizer, indices = self._trainer.optimizer, self._indices(places)
        self.options, optimizer.rescale_grad = optimizer, self._trainer._scale
        optimizer._set_current_context(0)
        optimizer._update_count(indices)
        counts = optimizer._index_update_count
        rates = [float(rate) for rate in optimizer._get_lrs(indices)]  # a schedule may return any number
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
    return None if state is None else host_view(state, idle=True)


def _written(before: Any, state: Any) -> Any:
    """Return a state in NDArrays: those from before, with new values, if these fit, else new ones."""
    if isinstance(state, (tuple, list)):
        parts = before if isinstance(before, (tuple, list)) else ()
        return type(state)(_written(*pair) for pair in zip((*parts, *[None] * len(state)), state))
    if state is None:
        return None
    if isinstance(before, mx.nd.NDArray):
        view = host_view(before, idle=True)
        if view.shape == state.shape and view.dtype == state.dtype:
            view[...] = state
            return before
    return new_array(state)
