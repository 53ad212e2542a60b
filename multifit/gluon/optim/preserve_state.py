"""Restore parameters and trainers after they were used."""

from __future__ import annotations

import copy
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Iterable, Iterator

from ..compat import mx
from .gradients import is_fresh, replicas, set_fresh
from .trainer_handle import TrainerHandle
from .trainers import start_kvstore

# The fields of a trainer that has no kvstore yet.
NO_KVSTORE = {"_kv_initialized": False, "_kvstore": None, "_distributed": None, "_update_on_kvstore": None}

STARTS = {"zeros": 0, "ones": 1}  # of running statistics


@contextmanager
def preserve_state(
    parameters: Iterable[mx.gluon.Parameter], trainers: Iterable[mx.gluon.Trainer | TrainerHandle]
) -> Iterator[None]:
    """Restore parameters and trainers when the block ends, even by an exception.

    Values, running statistics and gradients are copied, and copied back into the same arrays, which net and
    graphs hold. Within the block, a trainer works with copies of its optimizer, states and schedule, and with
    a separate kvstore. No trainer may be distributed (see :func:`refuse_distributed`).
    """
    with ExitStack() as stack:
        stack.enter_context(_preserve_parameters([p for p in parameters if p._data is not None]))
        for trainer in trainers:
            while isinstance(trainer, TrainerHandle):
                trainer = trainer.trainer
            stack.enter_context(_preserve_trainer(trainer))
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
    for parameter in parameters:
        if parameter._stype != "default":  # its values are in its trainer's kvstore
            values = parameter._reduce()
            for array in replicas(parameter):
                values.copyto(array)
    copies = [[array.copy() for array in _arrays(parameter)] for parameter in parameters]
    flags = [(values, is_fresh(values)) for p in parameters if p._grad for values in p._data]
    try:
        yield
    finally:
        for parameter, saved in zip(parameters, copies):
            for array, kept in zip(_arrays(parameter), saved):  # a changed grad_req may have made new arrays
                with suppress(mx.MXNetError):  # the error of an operator that failed to write this array
                    array.wait_to_read()
                kept.copyto(array)
        for values, fresh in flags:
            set_fresh(values, fresh)


def _arrays(parameter: mx.gluon.Parameter) -> list[mx.nd.NDArray]:
    return [*parameter._data, *(parameter._grad or ())]


@contextmanager
def _preserve_trainer(trainer: mx.gluon.Trainer) -> Iterator[None]:
    fields = trainer.__dict__
    optimizer = copy.deepcopy(trainer._optimizer)  # its schedule too
    optimizer.param_dict = trainer._optimizer.param_dict
    config = dict(trainer._kvstore_params)
    if isinstance(config["kvstore"], mx.kv.KVStore):  # it may be in use
        config["kvstore"] = mx.kv.create(config["kvstore"].type)
    updaters = [_copy_updater(updater, optimizer) for updater in trainer._updaters]
    replaced = {"_optimizer": optimizer, "_updaters": updaters, "_kvstore_params": config, **NO_KVSTORE}
    trainer.__dict__ = {**fields, **replaced, "_params_to_init": list(trainer._params)}
    try:
        if fields["_update_on_kvstore"] and fields["_kvstore"] is not None:
            start_kvstore(trainer)
            trainer._kvstore._set_updater(_copy_updater(fields["_kvstore"]._updater, optimizer))
        yield
    finally:
        trainer.__dict__ = fields


def _copy_updater(updater: Any, optimizer: mx.optimizer.Optimizer) -> Any:
    twin = copy.copy(updater)
    twin.optimizer, twin.states = optimizer, copy.deepcopy(updater.states)
    twin.states_synced = dict(updater.states_synced)
    return twin
