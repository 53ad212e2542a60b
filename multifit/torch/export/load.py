"""Load an exported net, and predict with it, without mxnet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Callable

import numpy as np
import torch

from ...errors import DataError, last_line
from ...files import parse_json, read_json
from ...protocols import Numbers
from ..devices import device_of
from .write import MODULE, PROGRAM, RECORD

ZIP_END, END_SIZE = b"PK\5\6", 22  # the last record of a zip file without a comment, as torch writes it


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
        The folder, or the module (``net.py``) or the program (``net.pt2``) in it.
    device : str or torch.device, optional
        The device on which it computes; by default the first GPU, else the CPU.

    Raises
    ------
    ValueError
        The net is missing, damaged or of another export; the folder holds both a module and a program; or the
        device does not exist.
    """
    path = _file_of(Path(path))
    chosen = device_of(device)
    load = _load_module if path.suffix == ".py" else _load_program
    try:
        return load(path, chosen)
    except ValueError as error:
        raise ValueError(f"cannot load {path}: {last_line(error)}") from error
    except Exception as error:  # whatever torch or the code of a module raises
        raise ValueError(f"cannot load {path}: {type(error).__name__}: {last_line(error)}") from error


def _file_of(path: Path) -> Path:
    """Return the module or the program at a path; raises ValueError if there is none, or both are."""
    found = [path / name for name in (MODULE, PROGRAM)] if path.is_dir() else [path]
    found = [each for each in found if each.is_file()]
    if not found:
        raise ValueError(f"there is no exported net: {path}")
    if len(found) > 1:
        raise ValueError(
            f"{path} has two exported nets: give the one that is meant, {' or '.join(map(str, found))}"
        )
    return found[0]


def _load_module(path: Path, device: torch.device) -> ExportedNet:
    record = _record_of(path)
    description = spec_from_file_location("multifit_exported_net", path)
    assert description is not None and description.loader is not None
    module = module_from_spec(description)
    description.loader.exec_module(module)
    net = module.load().to(device)  # which reads the parameters with weights_only=True
    return _exported(lambda *tensors: tuple(net(*tensors).values()), record, device)


def _record_of(path: Path) -> Any:
    """Return the content of the file that describes a module.

    Raises OSError or ValueError if it cannot be read, or if it is of another export. Hashes are not compared:
    the module may be changed, and the parameters may be trained.
    """
    record = read_json(path.with_name(RECORD))
    if not isinstance(record, dict) or record.get("format") != "torch":
        raise ValueError(f"{RECORD} is not of the same export: export the net again")
    return record


def _load_program(path: Path, device: torch.device) -> ExportedNet:
    if not _has_end(path):  # torch would print a traceback
        raise ValueError("it is damaged, or no program of torch.export")
    extra = {RECORD: ""}
    program = torch.export.load(path, extra_files=extra)
    net = program.module().to(device)
    return _exported(net, parse_json(extra[RECORD] or "{}"), device)


def _has_end(path: Path) -> bool:
    """Whether the last bytes are those of a zip file. In one that was cut off, a zip inside it may end."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - END_SIZE))
        return file.read().startswith(ZIP_END)


def _exported(call: Any, record: Any, device: torch.device) -> ExportedNet:
    """Return the net; raises ValueError if the record does not describe its inputs and outputs."""
    try:
        ports = {
            port["name"]: {key: port[key] for key in ("name", "shape", "dtype")} for port in record["inputs"]
        }
        outputs = [port["name"] for port in record["outputs"]]
    except (KeyError, TypeError):
        raise ValueError(f"{RECORD} does not say what its inputs and outputs are: export it again") from None
    return ExportedNet(call, ports, outputs, device)


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
