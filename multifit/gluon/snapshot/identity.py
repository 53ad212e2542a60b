"""The identity of a run on MXNet."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...engines.identity import Parameters, plain, run_identity
from ...schedules import ScaledSchedule
from ..compat import mx
from ..session import Session


def identity(session: Session) -> dict[str, Any]:
    """Return the identity of a run: its spec, parameters, trainers, devices, precision, balance, loaders."""
    trainers = session.trainers.get()
    return run_identity(
        session,
        described(session.model.parameters),
        {
            name: {
                "optimizer": type(trainer.optimizer).__name__,
                "options": _options(trainers.options.get(name)),
                "schedule": _schedule(trainer.optimizer.lr_scheduler),
                "clip_norm": plain(trainers.clip_norms.get(name)),
                "holds": list(trainers.parameters[name]),
                **(trainers.rhythms[name]._asdict() if name in trainers.rhythms else {}),
            }
            for name, trainer in trainers.items()
        },
    )


def described(parameters: Mapping[str, Any]) -> Parameters:
    """Return the shapes and dtypes of parameters or arrays."""
    return {name: _described(each) for name, each in parameters.items()}


def _described(parameter: Any) -> tuple[tuple[int, ...], str]:
    shape, dtype = parameter.shape, np.dtype(parameter.dtype)
    if shape is None:  # a SymbolBlock's parameter does not know its own
        shape = () if parameter._data is None else parameter._data[0].shape
    return tuple(shape), dtype.names[0] if dtype.names else dtype.name  # bfloat16: a field


def _options(options: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return declared options; None for an optimizer that the user built."""
    if options is None:
        return None
    return {key: plain(value) for key, value in options.items() if key != "lr_scheduler"}


def _schedule(scheduler: mx.lr_scheduler.LRScheduler | None) -> str | None:
    if isinstance(scheduler, ScaledSchedule):  # added when the rate is set during the run
        scheduler = scheduler.scheduler
    return None if scheduler is None else type(scheduler).__name__
