"""Save and load trainers: the optimizer's state of every parameter, counters, numbers and schedules.

``Trainer.save_states`` uses pickle, which can run code from a file; here, trainers become a tree of names,
numbers and arrays. All optimizers of MXNet are restored exactly, with two exceptions due to MXNet: LBSGD with
``batch_scale`` above 1 accumulates in the gradient array itself, and DCASGD with momentum cannot make a step.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ...errors import counted, quoted, suggest
from ..compat import mx
from ..optim.handle import TrainerHandle
from ..optim.schedules import ScaledSchedule
from ..optim.trainers import AddedGradients, start_kvstore
from .attributes import class_name, load_attributes, save_attributes

# Not saved as attributes: the program sets the parameters, and the counters are saved by parameter name.
NOT_ATTRIBUTES = ("param_dict", "idx2name", "sym_info", "_all_index_update_counts", "_index_update_count")
SCALED = f"multifit.{ScaledSchedule.__name__}"


def save_trainer(
    trainer: mx.gluon.Trainer, names: Sequence[str], where: str, unsaved: list[str]
) -> dict[str, Any]:
    """Return everything of a trainer that changes while it trains, as a tree.

    `names` are those of its parameters, in its order. The names of optimizer attributes that cannot be saved
    are appended to `unsaved`, each beginning with `where`. The tree refers to the trainer's arrays: write it,
    or copy the arrays, before the next step.
    """
    optimizer = trainer.optimizer
    counts = optimizer._all_index_update_counts
    return {
        "optimizer": type(optimizer).__name__,
        "schedule": None if optimizer.lr_scheduler is None else class_name(optimizer.lr_scheduler),
        "parameters": list(names),
        "states": [{names[i]: state for i, state in u.states.items()} for u in trainer._updaters],
        "counts": {device: {names[i]: n for i, n in count.items()} for device, count in counts.items()},
        "device": next((d for d, count in counts.items() if count is optimizer._index_update_count), 0),
        "attributes": save_attributes(optimizer, f"{where}.optimizer", unsaved, NOT_ATTRIBUTES),
        "scale": trainer._scale,
    }


def load_trainer(
    trainer: mx.gluon.Trainer | TrainerHandle, state: Mapping[str, Any], names: Sequence[str], where: str
) -> None:
    """Set what :func:`save_trainer` returned; the trainer may be new or used.

    Load the parameters before: when a kvstore starts, it copies the first device's values to all devices.
    Load the values that differ between devices afterwards. The order of `names` may differ from the saved
    order. Raises ValueError if the state is that of a different optimizer, of other parameters or of a
    different number of devices.
    """
    trainer = trainer.trainer if isinstance(trainer, TrainerHandle) else trainer
    optimizer, index = trainer.optimizer, {name: i for i, name in enumerate(names)}
    _check(where, optimizer, state, index)
    start_kvstore(trainer)  # now, as the first step would copy the first device's values to all devices
    if trainer._params_to_init:
        trainer._init_params()
    if len(trainer._updaters) != len(state["states"]):
        raise ValueError(
            f"{where}: the state is of {counted(len(state['states']), 'device')}, the trainer updates on "
            f"{counted(len(trainer._updaters), 'device')}; resume with what it was saved with"
        )
    _wrap_schedule(optimizer, state["schedule"])
    load_attributes(optimizer, state["attributes"], f"{where}.optimizer")
    counts = {d: {index[name]: n for name, n in count.items()} for d, count in state["counts"].items()}
    optimizer._all_index_update_counts = counts
    optimizer._index_update_count = counts[state["device"]]
    for updater, states in zip(trainer._updaters, state["states"]):
        updater.states = {index[name]: value for name, value in states.items()}
        # not synced: the updater copies states to its weights' device when it first needs them
        updater.states_synced = dict.fromkeys(updater.states, False)
    trainer._scale = state["scale"]


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


def _check(
    where: str, optimizer: mx.optimizer.Optimizer, state: Mapping[str, Any], index: Mapping[str, int]
) -> None:
    kind = type(optimizer).__name__
    if state["optimizer"] != kind:
        raise ValueError(f"{where}: the state is of {state['optimizer']}, the optimizer is {kind}")
    only_saved = [name for name in state["parameters"] if name not in index]
    only_here = [name for name in index if name not in state["parameters"]]
    if only_saved or only_here:
        near = suggest(only_saved[0], only_here) if only_saved else ""
        only = f"only the state has {quoted(only_saved[:6])}{near}, only the trainer {quoted(only_here[:6])}"
        raise ValueError(f"{where}: the state is of other parameters: {only}")
    schedule = optimizer.lr_scheduler
    if (state["schedule"] is None) != (schedule is None):
        there, here = (
            state["schedule"] or "no lr_scheduler",
            "none" if schedule is None else class_name(schedule),
        )
        raise ValueError(
            f"{where}: the state has {there}, the optimizer has {here}; give it the same schedule"
        )


def _wrap_schedule(optimizer: mx.optimizer.Optimizer, saved: str | None) -> None:
    """Wrap the schedule if the saved one is wrapped, as the rate was set during the run; else unwrap it."""
    scaled = saved == SCALED
    if scaled and not isinstance(optimizer.lr_scheduler, ScaledSchedule):
        optimizer.lr_scheduler = ScaledSchedule(optimizer.lr_scheduler)
    elif not scaled and isinstance(optimizer.lr_scheduler, ScaledSchedule):
        optimizer.lr_scheduler = optimizer.lr_scheduler.scheduler
