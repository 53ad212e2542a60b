"""Trees of plain values and arrays, to files and back: the structure as JSON, the arrays as NumPy's archive.

Nothing that is read can run: JSON has no code, and the archive is read without pickle.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ...files import atomic_path, atomic_write
from .coding import decoded, encoded

__all__ = ["read_tree", "write_tree"]


def write_tree(folder: Path, name: str, tree: Any) -> None:
    """Write a tree to ``<name>.json`` and, where there are arrays in it, ``<name>.npz``.

    Parameters
    ----------
    folder : Path
        Where; it is there already.
    name : str
        The files' name without suffix.
    tree : object
        Of None, bool, int, float (every one comes back exactly), str, list, tuple, dict with keys of str or
        int, NumPy arrays and scalars, and NDArrays, which come back on their device.

    Raises
    ------
    ValueError
        Something in it is of another type; the message says where. Nothing is written.
    OSError
        A file cannot be written.
    """
    arrays: list[np.ndarray] = []
    structure = encoded(tree, name, arrays)
    text = json.dumps({"arrays": len(arrays), "tree": structure}, allow_nan=False, separators=(",", ":"))
    if arrays:
        with atomic_path(folder / f"{name}.npz") as path:
            np.savez(path, **{str(i): array for i, array in enumerate(arrays)})
    atomic_write(folder / f"{name}.json", text + "\n")


def read_tree(folder: Path, name: str) -> Any:
    """Read what :func:`write_tree` wrote.

    Raises
    ------
    OSError
        A file is not there.
    ValueError
        A file does not hold what was written. Nothing of it was run.
    """
    path = folder / f"{name}.json"
    try:
        found = json.loads(path.read_text("utf-8"))
        return decoded(found["tree"], _arrays(folder / f"{name}.npz") if found["arrays"] else [])
    except OSError:
        raise
    except Exception as error:  # what broken files make json, zipfile, zlib and numpy raise is of many types
        said = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} or its .npz does not hold what was written ({said})") from error


def _arrays(path: Path) -> list[np.ndarray]:
    # opened here: NumPy leaves a broken archive open
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        return [archive[str(i)] for i in range(len(archive.files))]
