"""Write a translated net: as a plain module with its parameters, or as a program of `torch.export`."""

from __future__ import annotations

import io
import json
import logging
import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

import torch

from ...files import atomic_path, sha256
from ...protocols import Numbers
from ..translate import tensors_of, translate
from .module_file import module_text

MODULE, PARAMETERS, PROGRAM, RECORD = "net.py", "net.pt", "net.pt2", "export.json"


@dataclass(frozen=True)
class PlainNet:
    """A net in evaluation mode, as plain data.

    Parameters
    ----------
    symbol : str
        The JSON of a symbol with the outputs in their order.
    example : mapping of str to (shape, dtype)
        The shape and dtype of each input in one batch.
    open_axes : mapping of str to sequence of int
        The axes of each input that may have any size.
    outputs : sequence of str
        The names of the symbol's outputs.
    arrays : mapping of str to numpy.ndarray
        The values of all other variables.
    names : mapping of str to str
        The structural names of these variables.
    trained : sequence of str
        The variables that receive gradients.
    record : mapping
        The description of inputs, outputs and versions for ``export.json``.
    """

    symbol: str
    example: Mapping[str, tuple[tuple[int, ...], str]]
    open_axes: Mapping[str, Sequence[int]]
    outputs: Sequence[str]
    arrays: Mapping[str, Numbers]
    names: Mapping[str, str]
    trained: Sequence[str]
    record: Mapping[str, Any]


def write_module(net: PlainNet, folder: Path) -> list[Path]:
    """Write ``net.py``, ``net.pt`` and ``export.json``, which has the hashes of the other two.

    Raises SpecError if operators have no translation, and OSError if a file cannot be written.
    """
    module = _translated(net)
    text = module_text(module, net.outputs, PARAMETERS)
    paths = [folder / name for name in (RECORD, PARAMETERS, MODULE)]
    with ExitStack() as files:
        # The files are renamed in reverse order, once all three are written; the record is the last.
        record, parameters, source = (files.enter_context(atomic_path(path)) for path in paths)
        source.write_text(text, "utf-8")
        _write(parameters, lambda file: torch.save(dict(module.state_dict()), file))
        hashes = {MODULE: sha256(source), PARAMETERS: sha256(parameters)}
        content = {
            "format": "torch",
            "module": MODULE,
            "parameters": PARAMETERS,
            **net.record,
            "sha256": hashes,
        }
        record.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
    return sorted(paths)


def write_program(net: PlainNet, folder: Path) -> list[Path]:
    """Write ``net.pt2``, which contains ``export.json`` as an extra file.

    If the program takes batches of one size only, that is logged. Raises SpecError if operators have no
    translation, ValueError if `torch.export` cannot export the net, and OSError if the file cannot be
    written.
    """
    module = _translated(net)
    auto = getattr(torch.export.Dim, "AUTO", None)  # before torch 2.6, sizes are those of the batch
    sizes = tuple(dict.fromkeys(net.open_axes[name], auto) for name in net.example) if auto else None
    times = 2 if auto and _has_one_sample(net) else 1  # torch.export treats a size of 1 as a constant
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.export.export(module, _batch(net, times), dynamic_shapes=sizes, strict=False)
    except Exception as error:
        raise ValueError(
            f"torch.export failed ({type(error).__name__}: {_first_line(error)}); "
            'format="torch" writes the net as a module instead'
        ) from error
    _log_fixed_sizes(net, program, times)
    with atomic_path(folder / PROGRAM) as temporary:
        record = json.dumps({"format": "pt2", **net.record})
        _write(temporary, lambda file: torch.export.save(program, file, extra_files={RECORD: record}))
    return [folder / PROGRAM]


def _write(path: Path, save: Callable[[io.BytesIO], None]) -> None:
    """Write what a function of torch saves; on a full disk, torch's own writer would end the process.

    Raises OSError if the file cannot be written.
    """
    file = io.BytesIO()
    save(file)
    path.write_bytes(file.getbuffer())


def _has_one_sample(net: PlainNet) -> bool:
    """Whether an axis that may have any size has the size 1 in the example."""
    return any(shape[axis] == 1 for name, (shape, _) in net.example.items() for axis in net.open_axes[name])


def _batch(net: PlainNet, times: int) -> tuple[torch.Tensor, ...]:
    """Return a batch of zeros, `times` as large as the example along all axes that may have any size."""
    tensors = []
    for name, (shape, dtype) in net.example.items():
        sizes = [size * times if axis in net.open_axes[name] else size for axis, size in enumerate(shape)]
        tensors.append(torch.zeros(sizes, dtype=getattr(torch, dtype)))
    return tuple(tensors)


def _log_fixed_sizes(net: PlainNet, program: torch.export.ExportedProgram, times: int) -> None:
    """Log a warning if a program refuses a larger batch than the one with which it was made."""
    try:
        program.module()(*_batch(net, 2 * times))
    except Exception as error:  # what it raises differs between versions of torch
        made_with = zip(net.example, _batch(net, times))
        shapes = ", ".join(f'"{name}" {tuple(tensor.shape)}' for name, tensor in made_with)
        logging.getLogger("multifit").warning(
            f"{PROGRAM} takes batches of these sizes only: {shapes}, because torch.export fixed them: "
            f'{_first_line(error)}; format="torch" writes a net that takes any'
        )


def _first_line(error: Exception) -> str:
    """Return the first line of an error; below, torch describes the place in the graph."""
    return next(iter(str(error).strip().splitlines()), "no message")


def _translated(net: PlainNet) -> torch.fx.GraphModule:
    tensors = tensors_of(net.arrays, net.trained)
    return translate(net.symbol, list(net.example), tensors, names=net.names)
