"""Write predictions batch by batch to ``.npy`` files, for data whose outputs do not fit into memory."""

import os
import secrets
import shutil
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..utils.errors import DataError
from ..utils.files import check_folder, flush

HEADER = 512  # bytes, enough for any shape: it is written anew when the number of samples is known
WAY_OUT = "without output=, predict returns a list of arrays"


class PredictionFiles:
    """``.npy`` files in a folder, one for each output; ``detection/boxes`` is in ``detection.boxes.npy``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, BinaryIO] = {}
        self._kinds: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}  # of a sample
        self._counts: dict[str, int] = {}

    def write(self, name: str, array: np.ndarray[Any, Any], size: int) -> None:
        """Append the outputs of some samples; raises DataError if they do not continue those before."""
        if array.shape[:1] != (size,):
            raise DataError(f'output "{name}" has the shape {array.shape} for {size} samples; {WAY_OUT}')
        if array.dtype.hasobject:
            raise DataError(f'output "{name}" is an array of objects, not of numbers; {WAY_OUT}')
        kind = array.shape[1:], array.dtype
        if name not in self._files:
            self._files[name] = (self._folder / f"{name.replace('/', '.')}.npy").open("xb")
            self._files[name].write(bytes(HEADER))
            self._kinds[name], self._counts[name] = kind, 0
        if kind != self._kinds[name]:
            one, other = (f"{shape} {dtype}" for shape, dtype in (self._kinds[name], kind))
            raise DataError(f'output "{name}" is {one} for a sample, and {other} in a later batch; {WAY_OUT}')
        self._files[name].write(np.ascontiguousarray(array).data)
        self._counts[name] += size

    def finish(self) -> None:
        """Write the headers, in which NumPy finds dtype and shape, and close and flush the files."""
        for name, file in self._files.items():
            shape, dtype = self._kinds[name]
            fields = {"descr": dtype.str, "fortran_order": False, "shape": (self._counts[name], *shape)}
            text = repr(fields).encode("latin-1")
            file.seek(0)
            # of version 1.0 of the format: two bytes hold the length of what follows
            start = b"\x93NUMPY\x01\x00" + struct.pack("<H", HEADER - 10)
            file.write(start + text.ljust(HEADER - 11) + b"\n")
            file.close()
            flush(Path(file.name))

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def open(self, folder: Path) -> dict[str, np.memmap[Any, Any]]:
        """Return the outputs by name, as memory maps of their files, which are in `folder` by now."""
        files = self._files.items()
        return {name: np.load(folder / Path(file.name).name, mmap_mode="r") for name, file in files}


@contextmanager
def prediction_files(output: str | os.PathLike[str]) -> Iterator[PredictionFiles]:
    """Write files into a folder that appears, complete, when the block ends without an error.

    Raises ValueError if the folder is a file, or exists and is not empty.
    """
    folder = Path(os.path.realpath(output))
    check_folder("output", folder)
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"output={os.fspath(output)!r} is not empty: remove it, or give another folder")
    temporary = folder.with_name(f".{secrets.token_hex(8)}")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        files = PredictionFiles(temporary)
        stack.callback(files.close)
        yield files
        files.finish()
        flush(temporary)
        if folder.exists():  # an empty one, which not every system replaces
            folder.rmdir()
        os.replace(temporary, folder)
