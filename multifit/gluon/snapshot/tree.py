"""Write and read trees of plain values and arrays: the structure as JSON, the arrays as a NumPy archive.

JSON's own types stand for themselves. Everything else becomes an object with a tag and its content:
``{"tuple": [...]}``, ``{"dict": [[key, value], ...]}``, ``{"float": "nan"}``, ``{"array": 3}``. Nothing in
the files can run code: JSON holds none, and the archive is read without pickle.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, Callable, Sequence

import numpy as np

from ...errors import shown
from ...files import atomic_write, read_json, write_arrays
from ..compat import mx
from ..data.arrays import new_array

MOST_BYTES = 1 << 30  # of a structure: metrics can store much text
DEEPEST = 60  # nested containers; each takes up to three levels of JSON
PACKED = 32  # from this length on, a list of numbers of one type becomes one array
VALID = "None, bool, int, float, str, list, tuple, dict, NumPy's arrays and scalars, and NDArrays but CSR's"


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
        write_arrays(folder / f"{name}.npz", {str(i): array for i, array in enumerate(arrays)})
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


def encode(tree: Any, where: str, arrays: list[np.ndarray], depth: int = 0) -> Any:
    """Return the structure of a tree as JSON; its arrays are appended to `arrays`.

    Raises ValueError with the path of the value, which starts with `where`, if it cannot be saved.
    """
    if depth > DEEPEST:
        raise ValueError(f"{where[:100]}… nests more than {DEEPEST} deep, or contains itself")
    kind = type(tree)  # exactly this class: a subclass may have more state
    if kind in (type(None), bool, int, str) or (kind is float and math.isfinite(tree)):
        return tree
    if kind is float:
        return {"float": repr(tree)}
    if kind is list:
        return _pack(tree, arrays) or _encode_items(tree, where, arrays, depth)
    if kind is tuple:
        return {"tuple": _encode_items(tree, where, arrays, depth)}
    if kind is dict:
        items = [[_key(k, where), encode(v, f"{where}.{k}", arrays, depth + 1)] for k, v in tree.items()]
        return {"dict": items}
    if kind is mx.nd.NDArray:
        return {"ndarray": _add(tree.asnumpy(), arrays), "on": str(tree.context)}
    if kind is mx.nd.sparse.RowSparseNDArray:
        rows = [_add(part.asnumpy(), arrays) for part in (tree.data, tree.indices)]
        return {"rows": rows, "shape": list(tree.shape), "on": str(tree.context)}
    if kind is np.ndarray and not tree.dtype.hasobject:
        return {"array": _add(tree, arrays)}
    if isinstance(tree, np.generic) and not isinstance(tree, np.object_):
        return {"scalar": _add(np.asarray(tree), arrays)}
    of_objects = " of objects" if isinstance(tree, (np.ndarray, np.generic)) else ""
    name = f"{kind.__module__}.{kind.__qualname__}{of_objects}"
    raise ValueError(f"{where} is a {name}, which cannot be saved; valid are {VALID}")


def decode(structure: Any, arrays: list[np.ndarray]) -> Any:
    """Return the tree that :func:`encode` was given; raises any error if the structure is not valid."""
    if isinstance(structure, list):
        return [decode(item, arrays) for item in structure]
    if not isinstance(structure, dict):
        return structure
    tag, content = next(iter(structure.items()))
    return READERS[tag](content, structure, arrays)


def _encode_items(items: Any, where: str, arrays: list[np.ndarray], depth: int) -> list[Any]:
    return [encode(item, f"{where}[{i}]", arrays, depth + 1) for i, item in enumerate(items)]


def _pack(items: list[Any], arrays: list[np.ndarray]) -> dict[str, int] | None:
    """Return a long list of numbers of one type as one array; None for other lists.

    Detection metrics store lists of many thousands.
    """
    kind = type(items[0]) if len(items) >= PACKED else None
    if kind is None or any(type(item) is not kind for item in items):
        return None
    if issubclass(kind, (np.number, np.bool_)):
        return {"scalars": _add(np.array(items, items[0].dtype), arrays)}
    dtype = {float: "float64", int: "int64"}.get(kind)
    if dtype is None or (kind is int and not all(-(2**63) <= item < 2**63 for item in items)):
        return None
    return {"numbers": _add(np.array(items, dtype), arrays)}


def _add(array: np.ndarray, arrays: list[np.ndarray]) -> int:
    arrays.append(array)
    return len(arrays) - 1


def _key(key: object, where: str) -> str | int:
    if type(key) in (str, int):
        return key  # type: ignore[return-value]
    raise ValueError(f"{where} has the key {shown(key)}, which cannot be saved; valid are str and int")


def _rows_on(rows: Sequence[np.ndarray], shape: Sequence[int], device: str) -> mx.nd.sparse.RowSparseNDArray:
    values, indices = rows
    options = {"ctx": _context(device), "dtype": values.dtype}
    if not len(indices):
        return mx.nd.sparse.zeros("row_sparse", tuple(shape), **options)
    return mx.nd.sparse.row_sparse_array((values, indices), tuple(shape), **options)


def _context(device: str) -> mx.Context:
    match = re.fullmatch(r"(\w+)\((\d+)\)", device)
    if match is None or match[1] not in mx.Context.devstr2type:
        raise ValueError(f'there is no device "{device}"')
    return mx.Context(match[1], int(match[2]))


READERS: dict[str, Callable[[Any, dict[str, Any], list[np.ndarray]], Any]] = {
    "float": lambda content, _, arrays: float(content),
    "tuple": lambda content, _, arrays: tuple(decode(item, arrays) for item in content),
    "dict": lambda content, _, arrays: {key: decode(value, arrays) for key, value in content},
    "array": lambda content, _, arrays: arrays[content],
    "scalar": lambda content, _, arrays: arrays[content][()],
    "scalars": lambda content, _, arrays: list(arrays[content]),
    "numbers": lambda content, _, arrays: arrays[content].tolist(),
    "ndarray": lambda content, tagged, arrays: new_array(arrays[content], _context(tagged["on"])),
    "rows": lambda content, tagged, arrays: _rows_on(
        [arrays[i] for i in content], tagged["shape"], tagged["on"]
    ),
}
