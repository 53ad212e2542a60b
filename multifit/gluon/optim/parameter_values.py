"""Read and set the values of parameters on the CPU, for another engine."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Mapping

import numpy as np

from ..compat import mx
from ..data.arrays import host_view, new_array
from ..waiting import wait_for_operators
from .trainers import is_on_kvstore


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
            parameter, trainer = parameters[name], parameters[name]._trainer
            # a kvstore has a copy of the values, which `set_data` discards
            if _takes(parameter, value) and not (trainer and is_on_kvstore(trainer)):
                for array in parameter._data:
                    host_view(array, idle=True)[...] = value
                written[value.dtype] += parameter._data
            else:
                parameter.set_data(new_array(value, mx.cpu()))
        for arrays in written.values():
            _mark_changed(arrays)


def _is_plain(parameter: mx.gluon.Parameter) -> bool:
    """Whether all values of a parameter are dense arrays in the memory of the host."""
    return parameter._stype == "default" and all(each.device_type == "cpu" for each in parameter._ctx_list)


def _takes(parameter: mx.gluon.Parameter, value: np.ndarray) -> bool:
    """Whether a value can be written to a parameter as it is."""
    if parameter._data is None or not _is_plain(parameter):
        return False
    return parameter.shape == value.shape and parameter.dtype == value.dtype and value.size > 0


def _mark_changed(arrays: list[mx.nd.NDArray]) -> None:
    """Let one operator write arrays of one dtype to themselves.

    Operators of oneDNN keep a copy of weights in a layout of their own until an operator has written to them.
    """
    mx.nd.amp_multicast(*arrays, num_outputs=len(arrays), out=arrays)
