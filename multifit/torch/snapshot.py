"""Write the engine's part of a run into a folder, and read it back; nothing in the files can run code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from ..engines import snapshot
from ..engines.identity import Parameters, parameter_differences
from ..engines.snapshot import NONE, TRAINERS
from ..engines.trees import Add, Trees
from ..spec.plan import function_name
from ..utils.files import atomic_path
from ..utils.protocols import Numbers
from ..utils.text import last_line, quoted, shown
from .added_slots import dtype_name
from .model import Model

NET, OTHERS, TRAINED, BUFFERS = "net.pt", "losses.pt", "trained.pt", "buffers"
OF_LOSSES = "losses."  # what the names of losses' parameters begin with
INTEGERS = {1: torch.uint8, 2: torch.int16}  # by their bytes: for numbers that NumPy lacks, such as bfloat16


class TorchTrees(Trees):
    """Trees that hold tensors too; those that were not on the CPU are restored on `device`."""

    valid = f"{Trees.valid}, and dense tensors"

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def write_array(self, value: Any, add: Add) -> dict[str, Any] | None:
        if not isinstance(value, Tensor) or value.layout != torch.strided:
            return None
        on_host = value.detach().cpu().contiguous()
        try:
            array = on_host.numpy()
        except TypeError:
            array = on_host.view(INTEGERS[value.element_size()]).numpy()
        return {"tensor": add(array), "dtype": dtype_name(value.dtype), "on": value.device.type}

    def read_array(self, structure: Any, arrays: list[Numbers]) -> Tensor:
        tensor = torch.from_numpy(np.asarray(arrays[structure["tensor"]]))
        dtype = getattr(torch, structure["dtype"])
        tensor = tensor if tensor.dtype == dtype else tensor.view(dtype)
        return tensor if structure["on"] == "cpu" else tensor.to(self._device)


class Snapshot(snapshot.Snapshot):
    """Writes the net's ``state_dict`` by ``torch.save``, and everything else as trees, without pickle."""

    library = "torch"
    net_file, final_file, reader = NET, "final.pt", "net.load_state_dict(torch.load(file))"

    def __init__(self, session: Any) -> None:
        super().__init__(session, TorchTrees(session.model.device))

    def _described(self) -> Parameters:
        return _described(_saved(self._session.model))

    def _schedule_of(self, trainer: Any) -> str | None:
        schedule = trainer.rates.schedule or trainer.rates.scheduler
        return None if schedule is None else function_name(schedule)

    def write_trained(self, path: Path) -> None:
        model = self._session.model
        lazy = [name for name, each in model.tensors.items() if is_lazy(each)]
        if lazy:  # no batch has reached them
            raise ValueError(f"the net's {quoted(lazy)} have no values yet: call the net, or fit or check")
        _write(path, model)

    def _read_trained(self, path: Path) -> list[str]:
        return _read(path, self._session.model)

    def _own_state(self) -> dict[str, Any]:
        # the gradients that wait differ between ranks
        waiting = {TRAINERS: self._trainers_state()} if self._session.trainers.left else {}
        return {**super()._own_state(), **waiting}

    def _write_parameters(self, folder: Path, evaluated: Mapping[str, Any]) -> None:
        model = self._session.model
        _write(folder / NET, model, evaluated)
        if evaluated:
            tensors = model.tensors
            _save(folder / TRAINED, {name: tensors[name] for name in evaluated})
        if unsaved := self._unsaved():
            self.write_tree(folder, BUFFERS, unsaved)

    def _read_parameters(self, folder: Path, rank: int) -> list[str]:
        model = self._session.model
        _read(folder / NET, model)
        if (folder / TRAINED).exists():
            _set(model.tensors, _load(folder / TRAINED))
        if unsaved := self._unsaved():
            # they may have other shapes here, such as tables that a long sequence has made longer
            buffers = self.read_tree(folder, BUFFERS).items()
            _set(unsaved, {n: each for n, each in buffers if n in unsaved and each.shape == unsaved[n].shape})
        self._load_trainers(self.read_own_tree(folder, rank, TRAINERS))
        return []

    def _trainers_state(self) -> dict[str, Any]:
        state: dict[str, Any] = self._session.trainers.get().state()
        return state

    def _has_states(self, state: Mapping[str, Any]) -> bool:
        return any(each["states"] for each in state["trainers"].values())

    def _load_trainers(self, state: Mapping[str, Any]) -> None:
        self._session.trainers.get().load(state)

    def _gradients_wait(self, folder: Path, rank: int) -> bool:
        return bool(self.read_own_tree(folder, rank, TRAINERS)["gradients"])

    def _unsaved(self) -> dict[str, Tensor]:
        """Return the buffers that are not in a net's ``state_dict``."""
        saved = _saved(self._session.model)
        return {name: each for name, each in self._session.model.statistics.items() if name not in saved}

    def _statistics(self) -> dict[str, Any]:
        every = self._session.model.statistics
        return {name: each for name, each in every.items() if each.is_floating_point()}

    def _set_statistics(self, values: Mapping[str, Any]) -> None:
        _set(self._session.model.statistics, values)

    def _mean(self, arrays: Sequence[Any]) -> Any:
        return torch.stack([each.cpu() for each in arrays]).mean(0)

    def _dtype(self, dtype: Any) -> Any:
        return getattr(torch, dtype) if isinstance(dtype, str) else dtype_name(dtype)


# ---- parameters and buffers ------------------------------------------------------------------------------


def _saved(model: Model) -> dict[str, Tensor]:
    """Return what belongs to a file of parameters: all parameters, and the buffers that a net saves."""
    state = model.net.state_dict(keep_vars=True)  # those that have no shape yet cannot be detached
    of_net = {name: each for name, each in state.items() if isinstance(each, Tensor)}
    return {**of_net, **{name: each for name, each in model.tensors.items() if name.startswith(OF_LOSSES)}}


def _write(path: Path, model: Model, evaluated: Mapping[str, Any] = NONE) -> None:
    """Write the net's ``state_dict`` to a file, and what losses have to ``losses.pt`` beside it.

    `evaluated` replaces values by name. Parameters that have no shape yet are left out. Raises OSError if a
    file cannot be written completely.
    """
    tensors = model.tensors
    used = {id(tensors[name]): value for name, value in evaluated.items()}
    of_net = model.net.state_dict(keep_vars=True)
    _save(path, {name: used.get(id(each), each) for name, each in of_net.items()})
    of_losses = {n: used.get(id(t), t) for n, t in tensors.items() if n.startswith(OF_LOSSES)}
    if of_losses:
        _save(path.with_name(OTHERS), {n[len(OF_LOSSES) :]: each for n, each in of_losses.items()})


def _save(path: Path, values: Mapping[str, Any]) -> None:
    on_host = {}
    for name, value in values.items():
        if isinstance(value, Tensor) and not is_lazy(value):
            on_host[name] = value.detach().cpu()
        elif not isinstance(value, Tensor):  # a handler's value, or that of get_extra_state
            on_host[name] = torch.as_tensor(value) if isinstance(value, np.ndarray) else _extra(name, value)
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        torch.save(on_host, file)


def _extra(name: str, value: Any) -> Any:
    """Return what a module's `get_extra_state` returned; ValueError if reading it would run code."""
    buffer = BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    try:
        torch.load(buffer, weights_only=True)
    except Exception as error:  # of many types
        raise ValueError(
            f"the net's {name} is {shown(value)}, which cannot be read without running code; let "
            "get_extra_state return tensors, numbers, strings, or lists or dicts of them"
        ) from error
    return value


def _load(path: Path) -> dict[str, Any]:
    """Return a file's tensors by name; ValueError if it is missing or damaged, or holds something else."""
    if not path.is_file():  # torch would wait for a pipe
        raise ValueError(f"{path} is a folder, not a file" if path.is_dir() else f"there is no file {path}")
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many types
        raise ValueError(f"{path} is damaged, or holds no parameters ({last_line(error)})") from error
    if not isinstance(tensors, dict) or not all(isinstance(name, str) for name in tensors):
        raise ValueError(f"the tensors of {path} have no names")
    return tensors


def _read(path: Path, model: Model) -> list[str]:
    """Set the net's parameters and buffers to those in a file, and those of losses to the file beside it.

    Returns what differs in names, shapes or dtypes; then none is set.
    """
    here, saved = _saved(model), _load(path)
    of_losses = {name: each for name, each in here.items() if name.startswith(OF_LOSSES)}
    others = {}
    if of_losses:
        others = {f"{OF_LOSSES}{name}": each for name, each in _load(path.with_name(OTHERS)).items()}
    lines = parameter_differences(_described({**saved, **others}), _described(here))
    if not lines:
        for name in [name for name, each in here.items() if is_lazy(each)]:
            here[name].materialize({**saved, **others}[name].shape)
        model.net.load_state_dict(saved)
        _set(of_losses, others)
    return lines


def _set(tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in values.items():
            tensors[name].copy_(value)


def _described(tensors: Mapping[str, Any]) -> Parameters:
    """Return shapes and dtypes; None for a shape that no batch has determined yet."""
    return {
        name: (None if is_lazy(each) else tuple(each.shape), dtype_name(each.dtype))
        for name, each in tensors.items()
        if isinstance(each, Tensor)
    }
