"""Save and restore parameters: in Gluon's format, and separately what that format cannot hold."""

from __future__ import annotations

import errno
from itertools import repeat
from pathlib import Path
from typing import Any, Iterable, Mapping, Sequence

import numpy as np

from ...errors import suggest
from ...files import atomic_path
from ..compat import mx
from ..optim.gradients import fresh_flags, set_fresh
from ..optim.parameters import listing

__all__ = ["device_state", "load_device_state", "read_parameters", "write_parameters"]

NET, OTHERS = "net.params", "losses.params"


def write_parameters(folder: Path, net: Any, parameters: Mapping[str, Any]) -> None:
    """Write ``net.params``, which `net.load_parameters` reads, and all others to ``losses.params``.

    Parameters
    ----------
    folder : Path
        An existing folder.
    net : Block
        Parameters of its that have no shape yet, as no batch reached them, are left out.
    parameters : mapping of str to Parameter
        All by name, the losses' too (:func:`multifit.gluon.optim.parameters.named_parameters`).

    Raises
    ------
    OSError
        A file cannot be written completely.
    """
    own = net._collect_params_with_prefix()
    others = {name: p for name, p in parameters.items() if name not in own}
    for name, found in ((NET, own), (OTHERS, others)):
        if found or name == NET:
            with atomic_path(folder / name) as path:
                # as Block.save_parameters does it: the mean over the devices
                _save(path, {n: p._reduce() for n, p in found.items() if p._data is not None})


def read_parameters(folder: Path, parameters: Mapping[str, Any], contexts: Sequence[Any]) -> None:
    """Set all parameters, whether they are initialised, deferred or neither.

    Parameters
    ----------
    folder : Path
        Where :func:`write_parameters` wrote.
    parameters : mapping of str to Parameter
        All by name.
    contexts : sequence of Context
        The devices of parameters that are not initialised.

    Raises
    ------
    ValueError
        A parameter is missing in the files, or has another shape or dtype there. None was set.
    """
    saved: dict[str, Any] = {}
    for name in (NET, OTHERS):
        if (folder / name).exists() or name == NET:
            saved.update(mx.nd.load(str(folder / name)) or {})
    missing = [name for name, p in parameters.items() if name not in saved and p._data is not None]
    if missing:
        near = suggest(missing[0], saved)
        raise ValueError(f"{folder} has no parameters {listing(missing)}{near}")
    present = {name: p for name, p in parameters.items() if name in saved}
    for name, parameter in present.items():
        _check(f'{folder}: parameter "{name}"', parameter, saved[name])
    for name, parameter in present.items():
        fresh = parameter._data is None and not parameter._deferred_init
        parameter._load_init(saved[name], list(contexts) if fresh else None)


def device_state(parameters: Mapping[str, Any], held: Iterable[str]) -> dict[str, Any]:
    """Return the values that differ between devices, and the gradients that no trainer has used yet.

    Each device has its own running statistics, of which Gluon's format stores the mean. Because of rounding,
    even the mean of equal values can differ from them.

    Parameters
    ----------
    parameters : mapping of str to Parameter
        All by name.
    held : iterable of str
        Those that have a trainer.
    """
    several = {n: p for n, p in parameters.items() if _is_dense(p) and len(p.list_ctx()) > 1}
    pending = {name: parameters[name] for name in held if _is_pending(parameters[name])}
    return {
        "replicas": {name: list(p.list_data()) for name, p in several.items() if not _is_mean(p)},
        "gradients": {name: list(p.list_grad()) for name, p in pending.items()},
        "fresh": {name: fresh_flags(p) for name, p in pending.items()},
    }


def load_device_state(parameters: Mapping[str, Any], held: Iterable[str], state: Mapping[str, Any]) -> None:
    """Restore what :func:`device_state` returned, after the parameters and the trainers.

    Raises
    ------
    ValueError
        The checkpoint was saved on another number of devices.
    """
    for name, arrays in state["replicas"].items():
        _set(name, parameters[name].list_data(), arrays)
    for name in held:
        parameter, fresh = parameters[name], state["fresh"].get(name)
        if fresh is not None:
            _set(name, parameter.list_grad(), state["gradients"][name])
        elif parameter.grad_req == "add":
            parameter.zero_grad()
        for data, flag in zip(parameter.list_data() if _is_dense(parameter) else (), fresh or repeat(False)):
            set_fresh(data, flag)


def _is_dense(parameter: Any) -> bool:
    return parameter._data is not None and parameter._stype == "default"


def _is_pending(parameter: Any) -> bool:
    ready = _is_dense(parameter) and parameter.grad_req != "null"
    return ready and any(fresh_flags(parameter))


def _check(where: str, parameter: Any, saved: Any) -> None:
    shape = tuple(parameter.shape or saved.shape)  # a SymbolBlock's parameter may not know its own
    known = len(shape) == len(saved.shape) and all(a in (0, -1, b) for a, b in zip(shape, saved.shape))
    if not known:
        raise ValueError(f"{where} is {tuple(saved.shape)} in the checkpoint, {shape} here")
    here, there = np.dtype(parameter.dtype or saved.dtype), np.dtype(saved.dtype)
    if here != there:
        raise ValueError(f"{where} is {there} in the checkpoint, {here} here; cast the net first")


def _is_mean(parameter: Any) -> bool:
    mean = parameter._reduce().asnumpy().tobytes()
    return all(data.asnumpy().tobytes() == mean for data in parameter.list_data())


def _set(name: str, arrays: Sequence[Any], saved: Sequence[Any]) -> None:
    if len(arrays) != len(saved):
        raise ValueError(
            f'parameter "{name}" was saved on {len(saved)} devices, and is on {len(arrays)} here; '
            "resume with as many devices"
        )
    for array, value in zip(arrays, saved):
        array[:] = value


def _save(path: Path, arrays: Mapping[str, Any]) -> None:
    mx.nd.save(str(path), dict(arrays))
    try:  # MXNet does not report a disk that is full at the last bytes
        mx.nd.load(str(path))
    except mx.base.MXNetError as error:
        raise OSError(errno.ENOSPC, "the file is not complete", str(path)) from error
