"""Save and load parameters: in Gluon's format, with separate trees for what that format cannot hold."""

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from ...engines import identity
from ...engines.snapshot import NONE
from ...utils.files import atomic_path
from ...utils.text import last_line
from ..compat import mx
from ..optim.gradients import fresh_flags, set_fresh
from ..user_code import wait_for_operators

NET, OTHERS, TRAINED = "net.params", "losses.params", "trained.params"
Parameters = Mapping[str, mx.gluon.Parameter]


def described(parameters: Mapping[str, Any]) -> identity.Parameters:
    """Return the shapes and dtypes of parameters or arrays."""
    described = {}
    for name, each in parameters.items():
        shape, dtype = each.shape, np.dtype(each.dtype)
        if shape is None:  # a SymbolBlock's parameter does not know its own
            shape = () if each._data is None else each._data[0].shape
        described[name] = tuple(shape), dtype.names[0] if dtype.names else dtype.name  # bfloat16: a field
    return described


def write_trained(path: Path, model: Any) -> None:
    """Write a model's parameters as :func:`write_parameters` does. ValueError: some have no values."""
    for parameter in model.net.collect_params().values():
        if parameter._data is None:  # no batch has reached it
            raise ValueError(f"{parameter.name} has no values yet: initialise the net, or fit or check")
    write_parameters(path, model.net, model.parameters)


def write_parameters(
    path: Path, net: mx.gluon.Block, parameters: Parameters, evaluated: Mapping[str, Any] = NONE
) -> None:
    """Write the net's parameters to a file, and those of losses to ``losses.params`` beside it.

    ``net.load_parameters`` can read the first file. Parameters that have no shape yet, because no batch has
    reached them, are left out. Where evaluations use other values, those of `evaluated`, these files hold
    them, and ``trained.params`` holds the parameters that training continues with. Raises OSError if a file
    cannot be written completely.
    """
    used = {id(parameters[name]): value for name, value in evaluated.items()}
    _write(path, net._collect_params_with_prefix(), used)
    if others := _others(net, parameters):
        _write(path.with_name(OTHERS), others, used)
    if evaluated:
        _write(path.with_name(TRAINED), {name: parameters[name] for name in evaluated})


def _others(net: mx.gluon.Block, parameters: Parameters) -> Parameters:
    of_net = net._collect_params_with_prefix()
    return {name: parameter for name, parameter in parameters.items() if name not in of_net}


def _write(path: Path, parameters: Parameters, used: Mapping[Any, Any] = NONE) -> None:
    wait_for_operators()
    values = {name: used.get(id(p)) for name, p in parameters.items() if p._data is not None}
    # as Block.save_parameters does it: the mean over the devices
    arrays = {name: parameters[name]._reduce() if v is None else v for name, v in values.items()}
    with atomic_path(path) as temporary:
        try:
            mx.nd.save(str(temporary), arrays)
            mx.nd.load(str(temporary))  # MXNet does not report that the disk is full for the last bytes
        except mx.base.MXNetError as error:
            raise _reason(temporary) from error


def _reason(path: Path) -> OSError:
    """Return why a file could not be written: MXNet does not say, but writing more fails for that reason."""
    try:
        with path.open("ab") as file:
            file.write(bytes(1 << 20))
    except OSError as error:
        return error
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_parameters(folder: Path, parameters: Parameters, contexts: Sequence[mx.Context]) -> None:
    """Set all parameters, whether they are initialised, deferred or neither (then on `contexts`).

    They are set to what training continues with, where that differs from what evaluations use.
    """
    saved: dict[str, mx.nd.NDArray] = {}
    for file in (NET, OTHERS, TRAINED):
        if (folder / file).exists() or file == NET:
            saved.update(mx.nd.load(str(folder / file)) or {})
    _set_all(parameters, saved, contexts)


def read_trained(
    path: Path, net: mx.gluon.Block, parameters: Parameters, contexts: Sequence[mx.Context]
) -> list[str]:
    """Set the net's parameters to those in a file, and those of losses to ``losses.params`` beside it.

    Parameters that are not initialised are set on `contexts`. Returns what differs in names, shapes or
    dtypes; then none is set. Raises ValueError if a file is missing or damaged.
    """
    others, saved = _others(net, parameters), _read_named(path)
    if others:
        saved.update(_read_named(path.with_name(OTHERS)))
    here = {**net._collect_params_with_prefix(), **others}
    differences = identity.parameter_differences(described(saved), described(here))
    if not differences:
        _set_all(here, saved, contexts)
    return differences


def _read_named(path: Path) -> dict[str, mx.nd.NDArray]:
    """Return a file's arrays by name."""
    if not path.is_file():  # MXNet would wait for a pipe, and read a folder
        raise ValueError(f"{path} is a folder, not a file" if path.is_dir() else f"there is no file {path}")
    try:
        saved = mx.nd.load(str(path))
    except mx.base.MXNetError as error:
        raise ValueError(f"{path} is damaged, or holds no parameters ({last_line(error)})") from error
    if not isinstance(saved, dict):  # a list, or nothing
        raise ValueError(f"the arrays of {path} have no names")
    return saved


def _set_all(
    parameters: Parameters, saved: Mapping[str, mx.nd.NDArray], contexts: Sequence[mx.Context]
) -> None:
    """Set those parameters that have a saved value."""
    for name, parameter in parameters.items():
        if name in saved:
            fresh = parameter._data is None and not parameter._deferred_init
            parameter._load_init(saved[name], list(contexts) if fresh else None)


def save_device_state(parameters: Parameters, trained: Iterable[str]) -> dict[str, Any]:
    """Return the values that differ between devices, and trained parameters' gradients that are not used yet.

    Each device has its own running statistics, but Gluon's format stores only their mean. Because of
    rounding, the mean can differ even from equal values.
    """
    wait_for_operators()
    several = {n: p for n, p in parameters.items() if p._data is not None and len(p.list_ctx()) > 1}
    pending = {name: parameters[name] for name in trained if _is_pending(parameters[name])}
    return {
        "replicas": {name: list(p.list_data()) for name, p in several.items() if not _is_mean(p)},
        "gradients": {name: list(p.list_grad()) for name, p in pending.items()},
        "fresh": {name: fresh_flags(p) for name, p in pending.items()},
    }


def load_device_state(parameters: Parameters, trained: Iterable[str], state: Mapping[str, Any]) -> None:
    """Set what :func:`save_device_state` returned; load parameters and trainers before."""
    for name, arrays in state["replicas"].items():
        _set(parameters[name].list_data(), arrays)
    for name in trained:
        parameter, fresh = parameters[name], state["fresh"].get(name)
        if fresh is not None:
            _set(parameter.list_grad(), state["gradients"][name])
        elif parameter.grad_req == "add":
            parameter.zero_grad()
        for values, flag in zip(parameter._data or (), fresh or repeat(False)):
            set_fresh(values, flag)


def _is_pending(parameter: mx.gluon.Parameter) -> bool:
    return parameter._data is not None and parameter.grad_req != "null" and any(fresh_flags(parameter))


def _is_mean(parameter: mx.gluon.Parameter) -> bool:
    mean = parameter._reduce().asnumpy().tobytes()
    return all(values.asnumpy().tobytes() == mean for values in parameter.list_data())


def _set(arrays: Sequence[mx.nd.NDArray], saved: Sequence[mx.nd.NDArray]) -> None:
    for array, value in zip(arrays, saved):
        array[:] = value
