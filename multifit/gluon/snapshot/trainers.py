"""Save and load trainers: the optimizer's state of every parameter, counters, numbers and schedules.

``Trainer.save_states`` uses pickle, which can run code from a file; here, trainers become a tree of names,
numbers and arrays. All optimizers of MXNet are restored exactly, with two exceptions due to MXNet: LBSGD with
``batch_scale`` above 1 accumulates in the gradient array itself, and DCASGD with momentum cannot make a step.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...schedules import ScaledSchedule
from ..compat import mx
from ..optim.gradients import AddedGradients, start_kvstore
from ..optim.handle import TrainerHandle

NUMBERS = (bool, int, float, np.number, type(None))
STOCK = ("mxnet", "multifit")  # packages whose optimizers and schedules remember nothing but numbers


def save_trainer(trainer: mx.gluon.Trainer, names: Sequence[str]) -> dict[str, Any]:
    """Return everything of a trainer that changes while it trains, as a tree.

    `names` are those of its parameters, in its order. The tree refers to the trainer's arrays: write it, or
    copy the arrays, before the next step.
    """
    optimizer = trainer.optimizer
    counts = optimizer._all_index_update_counts
    return {
        "scaled": isinstance(optimizer.lr_scheduler, ScaledSchedule),
        "states": [{names[i]: state for i, state in u.states.items()} for u in trainer._updaters],
        "counts": {device: {names[i]: n for i, n in count.items()} for device, count in counts.items()},
        "device": next((d for d, count in counts.items() if count is optimizer._index_update_count), 0),
        "numbers": save_numbers(optimizer),
        "scale": trainer._scale,
    }


def load_trainer(
    trainer: mx.gluon.Trainer | TrainerHandle, state: Mapping[str, Any], names: Sequence[str]
) -> None:
    """Set what :func:`save_trainer` returned, of a trainer of the same identity; this one may be used.

    Load the parameters before: when a kvstore starts, it copies the first device's values to all devices.
    Load the values that differ between devices afterwards. The order of `names` may differ from the saved
    order.
    """
    trainer = trainer.trainer if isinstance(trainer, TrainerHandle) else trainer
    optimizer, index = trainer.optimizer, {name: i for i, name in enumerate(names)}
    if not trainer._kv_initialized:
        start_kvstore(trainer)  # now, as the first step would copy the first device's values to all devices
    if trainer._params_to_init:
        trainer._init_params()
    is_scaled = isinstance(optimizer.lr_scheduler, ScaledSchedule)
    if state["scaled"] and not is_scaled:  # the rate was set during the run
        optimizer.lr_scheduler = ScaledSchedule(optimizer.lr_scheduler)
    elif is_scaled and not state["scaled"]:
        optimizer.lr_scheduler = optimizer.lr_scheduler.scheduler
    load_numbers(optimizer, state["numbers"])
    counts = {d: {index[name]: n for name, n in count.items()} for d, count in state["counts"].items()}
    optimizer._all_index_update_counts = counts
    optimizer._index_update_count = counts[state["device"]]
    for updater, states in zip(trainer._updaters, state["states"]):
        updater.states = {index[name]: value for name, value in states.items()}
        # not synced: the updater copies states to its weights' device when it first needs them
        updater.states_synced = dict.fromkeys(updater.states, False)
    trainer._scale = state["scale"]


def save_numbers(thing: Any) -> dict[str, Any]:
    """Return the numbers that an optimizer or a schedule remembers, and those of the schedules in it.

    One that has `state_dict` and `load_state_dict` says itself what it remembers.
    """
    if _has_state(thing):
        return {"own": thing.state_dict()}
    attributes = vars(thing).items()
    return {
        "numbers": {name: value for name, value in attributes if isinstance(value, NUMBERS)},
        "schedules": {name: save_numbers(value) for name, value in attributes if _is_schedule(value)},
    }


def load_numbers(thing: Any, state: Mapping[str, Any]) -> None:
    """Set what :func:`save_numbers` returned."""
    if "own" in state:
        thing.load_state_dict(state["own"])
        return
    vars(thing).update(state["numbers"])  # not setattr: values from a file must not call properties
    for name, inner in state["schedules"].items():
        load_numbers(vars(thing)[name], inner)


def partly_saved(thing: Any) -> list[str]:
    """Return the classes of users, among an optimizer and its schedules, of which only numbers are saved."""
    if _has_state(thing):
        return []
    class_ = type(thing)
    is_stock = class_.__module__.partition(".")[0] in STOCK
    inner = [name for each in vars(thing).values() if _is_schedule(each) for name in partly_saved(each)]
    return [*([] if is_stock else [class_.__name__]), *inner]


def _has_state(thing: Any) -> bool:
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


def _is_schedule(value: Any) -> bool:
    return hasattr(value, "base_lr") and hasattr(value, "__dict__")


def save_settings(parameters: Mapping[str, mx.gluon.Parameter], added: AddedGradients) -> dict[str, Any]:
    """Return what handlers can set on a trainer's `parameters`: ``grad_req``, ``lr_mult`` and ``wd_mult``.

    `added` knows whose ``grad_req`` is "add" while training only.
    """
    return {
        name: [added.declared_request(p), float(p.lr_mult), float(p.wd_mult)]
        for name, p in parameters.items()
    }


def load_settings(
    parameters: Mapping[str, mx.gluon.Parameter], added: AddedGradients, settings: Mapping[str, Any]
) -> None:
    """Set what :func:`save_settings` returned."""
    for name, (request, lr_mult, wd_mult) in settings.items():
        parameter = parameters[name]
        parameter.lr_mult, parameter.wd_mult = lr_mult, wd_mult
        if request != added.declared_request(parameter):
            parameter.grad_req = request
