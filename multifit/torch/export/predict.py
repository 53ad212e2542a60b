"""Predict with an exported net for batches in files, without mxnet."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError, quoted, reason
from ...files import write_arrays
from ...protocols import Numbers
from .load import load_export


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
        A file cannot be opened.
    ValueError
        The net cannot be loaded.
    """
    exported = load_export(net, device)
    for number, file in enumerate(files, 1):
        outputs = exported.predict(_read(Path(file), exported.inputs))
        path = folder / f"{number}-{Path(file).stem[:40]}.npz"
        write_arrays(path, outputs)
        shapes = ", ".join(f"{name} {array.shape}" for name, array in outputs.items())
        yield f"{file}: {shapes}, in {path}"


def _read(path: Path, inputs: Sequence[str]) -> dict[str, Numbers]:
    """Return a file's arrays by name. Nothing in it is run."""
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            content = dict.fromkeys(inputs if len(inputs) == 1 else [], content)
        missing = [name for name in inputs if name not in content]
        if missing:
            raise ValueError(
                f"it has no {quoted(missing)}; give a .npz file with the inputs {quoted(inputs)}"
            )
        return {name: content[name] for name in inputs}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"cannot use {path}: {reason(error)}") from None
