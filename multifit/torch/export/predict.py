"""Predict with an exported net for batches in files, without mxnet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError, last_line, quoted
from ...files import write_arrays
from ...protocols import Numbers
from .load import load_export

STARTS = (b"\x93NUMPY", b"PK\3\4", b"PK\5\6")  # the first bytes of .npy and .npz files


def predict_files(net: Path, files: Sequence[str], folder: Path, device: Any = None) -> Iterator[str]:
    """Write the outputs for each file to ``<number>-<name>.npz``; yield a line about each.

    Parameters
    ----------
    net : pathlib.Path
        The exported net, for :func:`load_export`. Its code is run.
    files : sequence of str
        One batch each: ``.npz`` with the inputs by name, in which other arrays are ignored; or ``.npy`` if
        there is one input.
    folder : pathlib.Path
        The folder for the outputs.
    device : str or torch.device, optional
        The device on which the net computes; by default the first GPU, else the CPU.

    Raises
    ------
    DataError
        A file is damaged, lacks inputs, or has inputs that the net does not take.
    OSError
        A file cannot be opened or written.
    ValueError
        The net cannot be loaded.
    """
    exported = load_export(net, device)
    for number, file in enumerate(files, 1):
        try:
            outputs = exported.predict(_read(Path(file), exported.inputs))
        except DataError as error:
            raise DataError(f"cannot use {file}: {error.problems[0].message}") from error
        path = folder / f"{number}-{Path(file).stem[:40]}.npz"
        write_arrays(path, outputs)
        shapes = ", ".join(f"{name} {array.shape}" for name, array in outputs.items())
        yield f"{file}: {shapes}, in {path}"


def _read(path: Path, inputs: Sequence[str]) -> dict[str, Numbers]:
    """Return a file's arrays by name. Nothing in it is run.

    Raises OSError if it cannot be opened, and DataError if it is damaged or lacks inputs.
    """
    with path.open("rb") as file:
        try:
            if not file.read(6).startswith(STARTS):  # numpy takes it for a pickle
                raise ValueError("give a .npy or .npz file")
            file.seek(0)
            content = np.load(file, allow_pickle=False)
            if isinstance(content, np.ndarray):
                content = dict.fromkeys(inputs if len(inputs) == 1 else [], content)
            missing = [name for name in inputs if name not in content]
            if missing:
                raise ValueError(
                    f"it has no {quoted(missing)}; give a .npz file with the inputs {quoted(inputs)}"
                )
            return {name: np.asarray(content[name]) for name in inputs}  # a member that is not .npy is bytes
        except Exception as error:  # whatever numpy and the modules for zip files raise for a damaged file
            raise DataError(last_line(error)) from None
