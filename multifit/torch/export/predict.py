"""Predict with an exported net for batches in files. Needs no mxnet."""

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
        What :func:`load_export` loads. Its code is run.
    files : sequence of str
        A batch each: ``.npz`` with the inputs by name, other arrays are ignored; or ``.npy`` with the one
        input.
    folder : pathlib.Path
        Where the outputs go.
    device : str or torch.device, optional
        Where the net computes; by default the first GPU, else the CPU.

    Raises
    ------
    DataError
        A file is none, lacks inputs, or has others than the net takes.
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
