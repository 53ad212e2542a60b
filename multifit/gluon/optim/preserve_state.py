"""Restore parameters and trainers after they were used."""

import copy
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from ..compat import mx
from .gradients import is_fresh, set_fresh
from .handle import TrainerHandle

STARTS = {"zeros": 0, "ones": 1}  # of running statistics


@contextmanager
def preserve_state(
    parameters: Iterable[mx.gluon.Parameter], trainers: Iterable[TrainerHandle]
) -> Iterator[None]:
    """Restore parameters and trainers when the block ends, even by an exception.

    Values, running statistics and gradients are copied, and copied back into the same arrays, which net and
    graphs hold. Within the block, a trainer works with copies of its optimizer, states and schedule.
    """
    with ExitStack() as stack:
        stack.enter_context(_preserve_parameters([p for p in parameters if p._data is not None]))
        for trainer in trainers:
            stack.enter_context(_preserve_trainer(trainer.trainer))
        yield


@contextmanager
def kept_statistics(
    parameters: Iterable[mx.gluon.Parameter], after_errors_only: bool = False
) -> Iterator[None]:
    """Restore running statistics and other parameters without gradients when the block ends; does not wait.

    Statistics that are initialised within the block are reset to their initial values: zeros, or ones.
    """
    constant = [parameter for parameter in parameters if parameter.grad_req == "null"]
    new = [parameter for parameter in constant if parameter._data is None]
    arrays = [array for parameter in constant for array in parameter._data or ()]
    copies = [array.copy() for array in arrays]
    restores = True
    try:
        yield
        restores = not after_errors_only
    finally:
        with mx.autograd.pause():  # else MXNet would record the copies
            for array, saved in zip(arrays, copies) if restores else ():
                saved.copyto(array)
            for parameter in new if restores else ():
                start = STARTS.get(parameter.init) if isinstance(parameter.init, str) else None
                for array in () if start is None else parameter._data or ():
                    array[:] = start


@contextmanager
def _preserve_parameters(parameters: list[mx.gluon.Parameter]) -> Iterator[None]:
    copies = [[array.copy() for array in _arrays(parameter)] for parameter in parameters]
    flags = [(values, is_fresh(values)) for p in parameters if p._grad for values in p._data]
    try:
        yield
    finally:
        for parameter, saved in zip(parameters, copies):
            # a changed grad_req may have made new arrays
            for array, before in zip(_arrays(parameter), saved):
                with suppress(mx.MXNetError):  # the error of an operator that failed to write this array
                    array.wait_to_read()
                before.copyto(array)
        for values, fresh in flags:
            set_fresh(values, fresh)


def _arrays(parameter: mx.gluon.Parameter) -> list[mx.nd.NDArray]:
    return [*parameter._data, *(parameter._grad or ())]


@contextmanager
def _preserve_trainer(trainer: mx.gluon.Trainer) -> Iterator[None]:
    optimizer, updaters = trainer._optimizer, trainer._updaters
    trainer._optimizer = copy.deepcopy(optimizer)  # its schedule too, but not its parameters
    trainer._optimizer.param_dict = optimizer.param_dict
    trainer._updaters = [mx.optimizer.Updater(trainer._optimizer) for _ in updaters]
    for twin, updater in zip(trainer._updaters, updaters):
        twin.states, twin.states_synced = copy.deepcopy(updater.states), dict(updater.states_synced)
    try:
        yield
    finally:
        trainer._optimizer, trainer._updaters = optimizer, updaters
