"""Write and read trees of plain values and arrays: the structure as JSON, the arrays as a NumPy archive.

Nothing in the files can run code: JSON has none, and the archive is read without pickle.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ...files import atomic_path, atomic_write, read_json
from .coding import decode, encode

MOST_BYTES = 1 << 30  # of a structure: metrics can store much text


def write_tree(folder: Path, name: str, tree: Any) -> None:
    """Write a tree to ``<name>.json`` and, if it has arrays, ``<name>.npz``.

    A tree may contain None, bool, int, float, str, list, tuple, dict with keys of str or int, NumPy's arrays
    and scalars, and NDArrays. All are restored exactly; NDArrays on their device. A value of another type
    raises ValueError with its path, before anything is written.
    """
    arrays: list[np.ndarray] = []
    structure = encode(tree, name, arrays)
    text = json.dumps({"arrays": len(arrays), "tree": structure}, allow_nan=False, separators=(",", ":"))
    if arrays:
        with atomic_path(folder / f"{name}.npz") as path:
            np.savez(path, **{str(i): array for i, array in enumerate(arrays)})
    atomic_write(folder / f"{name}.json", text + "\n")


def read_tree(folder: Path, name: str) -> Any:
    """Read what :func:`write_tree` wrote; OSError if a file is missing, ValueError if one is damaged."""
    path = folder / f"{name}.json"
    try:
        content = read_json(path, limit=MOST_BYTES)
        return decode(content["tree"], _read_arrays(folder / f"{name}.npz") if content["arrays"] else [])
    except OSError:
        raise
    except Exception as error:  # json, zipfile, zlib and numpy raise many types
        raise ValueError(f"{path} or its .npz is damaged ({type(error).__name__}: {error})") from error


def _read_arrays(path: Path) -> list[np.ndarray]:
    # opened here: NumPy does not close a damaged archive
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        if any(entry.compress_type for entry in archive.zip.infolist()):  # they can have any size
            raise ValueError("it is compressed")
        return [archive[str(i)] for i in range(len(archive.files))]
