"""Save and restore trainers: the optimizers' states of every parameter, counters, scalars and schedules.

``Trainer.save_states`` uses pickle, which can run code from a file; this is a tree of names, numbers and
arrays. All optimizers of MXNet are restored exactly, with two exceptions due to MXNet: LBSGD with
``batch_scale`` above 1 accumulates in the gradient array itself, and DCASGD with momentum cannot make a step.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ...errors import counted, suggest
from ...errors import names as quoted
from ..optim.schedules import ScaledSchedule
from .attributes import class_name, fill, remembered, stable_name

__all__ = ["load_trainer_state", "trainer_state"]

# The program sets the parameters; the counters are saved by parameter name.
APART = ("param_dict", "idx2name", "sym_info", "_all_index_update_counts", "_index_update_count")
SCALED = f"multifit.{ScaledSchedule.__name__}"


def trainer_state(
    trainer: Any, held: Sequence[str] | None = None, where: str = "trainer", lost: list[str] | None = None
) -> dict[str, Any]:
    """Return everything of a trainer that changes while it trains, as a tree.

    The tree refers to the trainer's arrays: write it, or copy them, before the next step.

    Parameters
    ----------
    trainer : gluon.Trainer
        It may update on its kvstore.
    held : sequence of str, optional
        The names of its parameters, in its own order; default: those that Gluon gave them.
    where : str
        The trainer's name in `lost`.
    lost : list of str, optional
        The names of optimizer attributes that cannot be saved are appended.
    """
    optimizer, held = trainer.optimizer, _names(trainer, held)
    counts = optimizer._all_index_update_counts
    return {
        "optimizer": type(optimizer).__name__,
        "schedule": None if optimizer.lr_scheduler is None else class_name(optimizer.lr_scheduler),
        "parameters": held,
        "begun": trainer._kv_initialized,
        "on_kvstore": _on_kvstore(trainer),
        "states": [{held[i]: state for i, state in u.states.items()} for u in _updaters(trainer)],
        "counts": {device: {held[i]: n for i, n in count.items()} for device, count in counts.items()},
        "device": next((d for d, count in counts.items() if count is optimizer._index_update_count), 0),
        "attributes": remembered(optimizer, f"{where}.optimizer", [] if lost is None else lost, APART),
        "scale": trainer._scale,
    }


def load_trainer_state(
    trainer: Any, state: Mapping[str, Any], held: Sequence[str] | None = None, where: str = "trainer"
) -> None:
    """Set what :func:`trainer_state` returned.

    The parameters must be set before: a kvstore takes them along when it begins, and gives all devices the
    first one's. What differs from device to device must be set behind this.

    Parameters
    ----------
    trainer : gluon.Trainer
        With an optimizer of the same class and as many devices; new or used.
    state : mapping
        Its state.
    held : sequence of str, optional
        As for :func:`trainer_state`; the order may differ.
    where : str
        The trainer's name in error messages.

    Raises
    ------
    ValueError
        The state is of another optimizer, of other parameters or of another number of devices.
    """
    optimizer, index = trainer.optimizer, {name: i for i, name in enumerate(_names(trainer, held))}
    _check(where, optimizer, state, index)
    if state["begun"]:
        _begin(trainer)
    updaters = _updaters(trainer)
    if len(updaters) != len(state["states"]) or state["on_kvstore"] != _on_kvstore(trainer):
        _refuse_devices(where, state, trainer)
    _wrap_schedule(optimizer, state["schedule"])
    fill(optimizer, state["attributes"], f"{where}.optimizer")
    counts = {d: {index[name]: n for name, n in count.items()} for d, count in state["counts"].items()}
    optimizer._all_index_update_counts = counts
    optimizer._index_update_count = counts[state["device"]]
    for updater, states in zip(updaters, state["states"]):
        updater.states = {index[name]: value for name, value in states.items()}
        # the updater copies them to its weights' device when it first needs them
        updater.states_synced = dict.fromkeys(updater.states, False)
    trainer._scale = state["scale"]


def _names(trainer: Any, held: Sequence[str] | None) -> list[str]:
    return [parameter.name for parameter in trainer._params] if held is None else list(held)


def _on_kvstore(trainer: Any) -> bool:
    return bool(trainer._kv_initialized and trainer._kvstore and trainer._update_on_kvstore)


def _updaters(trainer: Any) -> list[Any]:
    return [trainer._kvstore._updater] if _on_kvstore(trainer) else list(trainer._updaters)


def _begin(trainer: Any) -> None:
    # as the first step would, which copies the first device's values to all devices: not within a run
    if not trainer._kv_initialized:
        trainer._init_kvstore()
    if trainer._params_to_init:
        trainer._init_params()


def _check(where: str, optimizer: Any, state: Mapping[str, Any], index: Mapping[str, int]) -> None:
    kind = type(optimizer).__name__
    if state["optimizer"] != kind:
        raise ValueError(f"{where}: the state is of {state['optimizer']}, the optimizer is {kind}")
    unknown = [name for name in state["parameters"] if name not in index]
    if unknown or len(index) != len(state["parameters"]):
        others = [name for name in index if name not in state["parameters"]]
        near = suggest(unknown[0], others) if unknown else ""
        only = f"only the state has {quoted(unknown[:6])}{near}, only the trainer {quoted(others[:6])}"
        raise ValueError(f"{where}: the state is of other parameters: {only}")
    here = optimizer.lr_scheduler
    if (state["schedule"] is None) != (here is None):
        there, own = state["schedule"] or "no lr_scheduler", "none" if here is None else class_name(here)
        raise ValueError(
            f"{where}: the state has {there}, the optimizer has {own}; give it the same schedule"
        )


def _refuse_devices(where: str, state: Mapping[str, Any], trainer: Any) -> None:
    raise ValueError(
        f"{where}: the state is of {_spread(len(state['states']), state['on_kvstore'])}, the trainer updates "
        f"on {_spread(len(_updaters(trainer)), _on_kvstore(trainer))}; resume as it was saved"
    )


def _spread(count: int, on_kvstore: bool) -> str:
    return "its kvstore" if on_kvstore else counted(count, "device")


def _wrap_schedule(optimizer: Any, saved: str | None) -> None:
    """Wrap or unwrap the schedule, as it was wrapped when the rate was set during the run."""
    scaled = saved is not None and stable_name(saved) == SCALED
    if scaled and not isinstance(optimizer.lr_scheduler, ScaledSchedule):
        optimizer.lr_scheduler = ScaledSchedule(optimizer.lr_scheduler)
    elif not scaled and isinstance(optimizer.lr_scheduler, ScaledSchedule):
        optimizer.lr_scheduler = optimizer.lr_scheduler.scheduler
