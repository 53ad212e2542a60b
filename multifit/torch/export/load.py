"""Load an exported net, and predict with it, without mxnet."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Callable

import numpy as np
import torch

from ...errors import DataError, last_line
from ...protocols import Numbers
from ..devices import device_of
from .write import MODULE, PROGRAM, RECORD


@dataclass(frozen=True)
class ExportedNet:
    """An exported net.

    Parameters
    ----------
    call : callable
        Returns the tuple of outputs for tensors in the order of the inputs.
    ports : mapping of str to mapping
        Name, shape and dtype of each input, by its name; axes of any size are not integers in a shape.
    outputs : sequence of str
        The names of the outputs.
    device : torch.device
        The device on which it computes.
    """

    call: Callable[..., Sequence[torch.Tensor]]
    ports: Mapping[str, Mapping[str, Any]]
    outputs: Sequence[str]
    device: torch.device

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs."""
        return list(self.ports)

    def predict(self, arrays: Mapping[str, Numbers]) -> dict[str, Numbers]:
        """Return the outputs of a batch by name.

        Raises DataError if the net does not take the shape or dtype of an input, or if the net raises.
        """
        tensors = [
            torch.from_numpy(_cast(arrays[name], port)).to(self.device) for name, port in self.ports.items()
        ]
        try:
            with torch.no_grad():
                values = self.call(*tensors)
        except Exception as error:  # whatever torch raises for sizes that do not fit each other
            shapes = ", ".join(f"{name} {arrays[name].shape}" for name in self.ports)
            raise DataError(
                f"the net raised {type(error).__name__} for {shapes}: {last_line(error)}"
            ) from error
        return {name: value.detach().cpu().numpy() for name, value in zip(self.outputs, values)}


def load_export(path: str | Path, device: Any = None) -> ExportedNet:
    """Return the net in a folder that `export` wrote with ``format="torch"`` or ``"pt2"``.

    This **runs the code in it**: a module like any Python file, a program like `torch.export.load`.

    Parameters
    ----------
    path : str or pathlib.Path
        The folder, or a program in it.
    device : str or torch.device, optional
        The device on which it computes; by default the first GPU, else the CPU.

    Raises
    ------
    ValueError
        There is no exported net, it cannot be loaded, or there is no such device.
    """
    path = Path(path)
    program = path if path.suffix == ".pt2" else path / PROGRAM
    chosen = device_of(device)
    try:
        if path != program and (path / MODULE).is_file():
            return _load_module(path, chosen)
        return _load_program(program, chosen)
    except Exception as error:  # whatever the code of a module raises
        raise ValueError(f"cannot load {path}: {type(error).__name__}: {last_line(error)}") from error


def _load_module(folder: Path, device: torch.device) -> ExportedNet:
    record = json.loads((folder / RECORD).read_text("utf-8"))
    description = spec_from_file_location("multifit_exported_net", folder / MODULE)
    assert description is not None and description.loader is not None
    module = module_from_spec(description)
    description.loader.exec_module(module)
    net = module.load().to(device)  # which reads the parameters with weights_only=True
    return _exported(lambda *tensors: tuple(net(*tensors).values()), record, device)


def _load_program(path: Path, device: torch.device) -> ExportedNet:
    extra = {RECORD: ""}
    program = torch.export.load(path, extra_files=extra)
    if not extra[RECORD]:
        raise ValueError("it does not say what its inputs and outputs are: export it again")
    net = program.module().to(device)
    return _exported(net, json.loads(extra[RECORD]), device)


def _exported(call: Any, record: Mapping[str, Any], device: torch.device) -> ExportedNet:
    ports = {port["name"]: port for port in record["inputs"]}
    return ExportedNet(call, ports, [port["name"] for port in record["outputs"]], device)


def _cast(array: Numbers, port: Mapping[str, Any]) -> Numbers:
    """Return an array in an input's dtype; raises DataError if its dtype or shape does not fit the input."""
    name, shape, dtype = port["name"], port["shape"], np.dtype(port["dtype"])
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise DataError(f'the input "{name}" is {dtype}, not {array.dtype}')
    if shape is not None:
        fixed = [size if isinstance(size, int) else None for size in shape]
        if len(fixed) != array.ndim or any(size not in (None, n) for size, n in zip(fixed, array.shape)):
            valid = ", ".join("any" if size is None else str(size) for size in fixed)
            raise DataError(f'the input "{name}" has the shape {array.shape}, not ({valid})')
    return np.ascontiguousarray(array, dtype)
