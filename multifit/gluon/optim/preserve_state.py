"""Using parameters and trainers, and leaving them as they were."""

from __future__ import annotations

import copy
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Iterable, Iterator

from ..compat import mx
from .trainer_handle import TrainerHandle

__all__ = ["preserve_state"]

# What a trainer knows of its kvstore before it has one.
NO_KVSTORE = {
    "_kv_initialized": False,
    "_kvstore": None,
    "_distributed": None,
    "_update_on_kvstore": None,
}


@contextmanager
def preserve_state(parameters: Iterable[Any], trainers: Iterable[Any]) -> Iterator[None]:
    """Let parameters move within the block; behind it all is as it was, however the block ends.

    Parameters
    ----------
    parameters : iterable of Parameter
        Values, running statistics and gradients are copied, and copied back: net and graphs hold the arrays.
    trainers : iterable of gluon.Trainer
        States, counters, rates and schedules stay as they are: within the block each trainer works with
        copies of them, and with a kvstore of its own. None may be distributed.
    """
    with ExitStack() as stack:
        stack.enter_context(_kept([p for p in parameters if p._data is not None]))
        for trainer in trainers:
            while isinstance(trainer, TrainerHandle):
                trainer = trainer.trainer
            stack.enter_context(_lent(trainer))
        yield


@contextmanager
def _kept(parameters: list[Any]) -> Iterator[None]:
    arrays = [array for p in parameters for array in (*p._data, *(p._grad or ()))]
    copies = [array.copy() for array in arrays]
    fresh = [(data, data._fresh_grad) for p in parameters if p._grad for data in p._data]
    try:
        yield
    finally:
        for array, value in zip(arrays, copies):
            with suppress(
                mx.MXNetError
            ):  # an operator that failed leaves its error with what it was to write
                array.wait_to_read()
            value.copyto(array)
        for data, was_fresh in fresh:
            data._fresh_grad = was_fresh


@contextmanager
def _lent(trainer: Any) -> Iterator[None]:
    own = trainer.__dict__
    optimizer = copy.deepcopy(trainer._optimizer)  # its schedule too
    optimizer.param_dict = trainer._optimizer.param_dict
    config = dict(trainer._kvstore_params)
    if isinstance(config["kvstore"], mx.kv.KVStore):  # one that is in use already
        config["kvstore"] = mx.kv.create(config["kvstore"].type)
    updaters = [_twin(updater, optimizer) for updater in trainer._updaters]
    within = {"_optimizer": optimizer, "_updaters": updaters, "_kvstore_params": config, **NO_KVSTORE}
    trainer.__dict__ = {**own, **within, "_params_to_init": list(trainer._params)}
    try:
        if own["_update_on_kvstore"] and own["_kvstore"] is not None:
            trainer._init_kvstore()
            trainer._kvstore._set_updater(_twin(own["_kvstore"]._updater, optimizer))
        yield
    finally:
        trainer.__dict__ = own


def _twin(updater: Any, optimizer: Any) -> Any:
    twin = copy.copy(updater)
    twin.optimizer, twin.states = optimizer, copy.deepcopy(updater.states)
    twin.states_synced = dict(updater.states_synced)
    return twin
