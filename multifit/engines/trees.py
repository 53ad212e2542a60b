"""Write and read trees of plain values and arrays: the structure as JSON, the arrays as a NumPy archive.

JSON's own types stand for themselves. Everything else becomes an object with a tag and its content:
``{"tuple": [...]}``, ``{"dict": [[key, value], ...]}``, ``{"float": "nan"}``, ``{"array": 3}``. Nothing in
the files can run code: JSON holds none, and the archive is read without pickle.

With several ranks, the first one writes the checkpoint. Its trees are in the checkpoint itself; trees of
another rank that differ from these are in a folder of its own, such as ``ranks/rank-0001``.
"""

import hashlib
import json
import math
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..distributed import World
from ..utils.files import read_json, write_arrays
from ..utils.protocols import Numbers
from ..utils.text import shown

Files = dict[str, bytes]
Add = Callable[[Numbers], int]
"""Adds an array to the archive, and returns its number there."""


class Trees:
    """Writes and reads trees; an engine adds its own arrays to the types that they may contain.

    A tree may contain None, bool, int, float, str, list, tuple, dict with keys of str or int, NumPy's arrays
    and scalars. All are restored exactly.
    """

    valid = "None, bool, int, float, str, list, tuple, dict, NumPy's arrays and scalars"

    def write_array(self, value: Any, add: Add) -> dict[str, Any] | None:
        """Return the structure of an engine's array; None for another value."""
        return None

    def read_array(self, structure: Any, arrays: list[Numbers]) -> Any:
        """Return the array of a structure that :meth:`write_array` returned."""
        raise ValueError(f"{shown(structure)} is no value of a tree")

    def write(self, folder: Path, name: str, tree: Any) -> None:
        """Write a tree to ``<name>.json`` and, if it has arrays, ``<name>.npz``.

        A value that cannot be restored raises ValueError with its path, before anything is written.
        """
        arrays: list[Numbers] = []
        structure = self.encode(tree, name, arrays)
        text = json.dumps({"arrays": len(arrays), "tree": structure}, allow_nan=False, separators=(",", ":"))
        if arrays:
            write_arrays(folder / f"{name}.npz", {str(i): array for i, array in enumerate(arrays)})
        (folder / f"{name}.json").write_text(text + "\n", "utf-8")

    def read(self, folder: Path, name: str) -> Any:
        """Read what :meth:`write` wrote; OSError if a file is missing, ValueError if one is damaged."""
        path = folder / f"{name}.json"
        try:
            content = read_json(path)
            arrays = _read_arrays(folder / f"{name}.npz") if content["arrays"] else []
            return self.decode(content["tree"], arrays)
        except OSError:
            raise
        except Exception as error:  # json, zipfile, zlib and numpy raise many types
            raise ValueError(f"{path} or its .npz is damaged ({type(error).__name__}: {error})") from error

    def encode(self, tree: Any, where: str, arrays: list[Numbers]) -> Any:
        """Return the structure of a tree as JSON; its arrays are appended to `arrays`.

        Raises ValueError with the path of the value, which starts with `where`, if it cannot be saved.
        """

        def add(array: Numbers) -> int:
            arrays.append(array)
            return len(arrays) - 1

        kind = type(tree)  # exactly this class: a subclass may have more state
        if kind in (type(None), bool, int, str) or (kind is float and math.isfinite(tree)):
            return tree
        if kind is float:
            return {"float": repr(tree)}
        if kind in (list, tuple):
            items = [self.encode(item, f"{where}[{i}]", arrays) for i, item in enumerate(tree)]
            return items if kind is list else {"tuple": items}
        if kind is dict:
            pairs = [[_key(k, where), self.encode(v, f"{where}.{k}", arrays)] for k, v in tree.items()]
            return {"dict": pairs}
        if (structure := self.write_array(tree, add)) is not None:
            return structure
        if kind is np.ndarray and not tree.dtype.hasobject:
            return {"array": add(tree)}
        if isinstance(tree, np.generic) and not isinstance(tree, np.object_):
            return {"scalar": add(np.asarray(tree))}
        of_objects = " of objects" if isinstance(tree, (np.ndarray, np.generic)) else ""
        name = f"{kind.__module__}.{kind.__qualname__}{of_objects}"
        raise ValueError(f"{where} is a {name}, which cannot be saved; valid are {self.valid}")

    def decode(self, structure: Any, arrays: list[Numbers]) -> Any:
        """Return the tree that :meth:`encode` was given; raises any error if the structure is not valid."""
        if isinstance(structure, list):
            return [self.decode(item, arrays) for item in structure]
        if not isinstance(structure, dict):
            return structure
        tag, content = next(iter(structure.items()))
        if tag == "float":
            return float(content)
        if tag == "tuple":
            return tuple(self.decode(item, arrays) for item in content)
        if tag == "dict":
            return {key: self.decode(value, arrays) for key, value in content}
        if tag == "array":
            return arrays[content]
        if tag == "scalar":
            return arrays[content][()]
        return self.read_array(structure, arrays)

    # ---- the ranks' own trees

    def gather(self, world: World, trees: Mapping[str, Any]) -> list[Files]:
        """Return, for every rank, the files of its trees that differ from those of the first rank."""
        digests = {name: self._digest(name, tree) for name, tree in trees.items()}
        first = world.from_first(digests)
        differing: Files = {}
        for name, tree in trees.items():
            if digests[name] != first.get(name):
                differing.update(self._files_of(name, tree))
        return world.gather(differing)

    def read_own(self, checkpoint: Path, rank: int, name: str) -> Any:
        """Return a rank's own tree; if it has none, the first rank's."""
        return self.read(
            _folder_of(checkpoint, rank) if has_own(checkpoint, rank, name) else checkpoint, name
        )

    def _files_of(self, name: str, tree: Any) -> Files:
        with tempfile.TemporaryDirectory() as folder:
            self.write(Path(folder), name, tree)
            return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}

    def _digest(self, name: str, tree: Any) -> str:
        arrays: list[Numbers] = []
        structure = json.dumps(self.encode(tree, name, arrays))
        content = b"".join(array.tobytes() for array in arrays)
        return hashlib.sha256(structure.encode() + content).hexdigest()


def write_ranks(folder: Path, ranks: list[Files]) -> None:
    """Write what :meth:`Trees.gather` returned into a checkpoint's folder."""
    for rank, files in enumerate(ranks):
        if files:
            _folder_of(folder, rank).mkdir(parents=True)
        for name, content in files.items():
            (_folder_of(folder, rank) / name).write_bytes(content)


def has_own(checkpoint: Path, rank: int, name: str) -> bool:
    """Whether a rank has a tree of its own, which differs from the first rank's."""
    return (_folder_of(checkpoint, rank) / f"{name}.json").exists()


def _folder_of(checkpoint: Path, rank: int) -> Path:
    return checkpoint / "ranks" / f"rank-{rank:04d}"


def _read_arrays(path: Path) -> list[Numbers]:
    # opened here: NumPy does not close a damaged archive
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        return [archive[str(i)] for i in range(len(archive.files))]


def _key(key: object, where: str) -> str | int:
    if type(key) in (str, int):
        return key  # type: ignore[return-value]
    raise ValueError(f"{where} has the key {shown(key)}, which cannot be saved; valid are str and int")
