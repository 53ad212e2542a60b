"""Save and read what differs between the ranks of a run; the first rank writes the checkpoint.

The first rank's trees are in the checkpoint itself. Trees of another rank that differ from these are in a
folder of its own, such as ``ranks/rank-0001``.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any, Mapping

import numpy as np

from ...distributed import World
from .tree import encode, read_tree, write_tree

Files = dict[str, bytes]


def gather_trees(world: World, trees: Mapping[str, Any]) -> list[Files]:
    """Return, for every rank, the files of its trees that differ from those of the first rank."""
    digests = {name: _digest(name, tree) for name, tree in trees.items()}
    first = world.from_first(digests)
    differing: Files = {}
    for name, tree in trees.items():
        if digests[name] != first.get(name):
            differing.update(_files_of(name, tree))
    return world.gather(differing)


def write_ranks(folder: Path, ranks: list[Files]) -> None:
    """Write what :func:`gather_trees` returned into a checkpoint's folder."""
    for rank, files in enumerate(ranks):
        if files:
            _folder_of(folder, rank).mkdir(parents=True)
        for name, content in files.items():
            (_folder_of(folder, rank) / name).write_bytes(content)


def read_own_tree(checkpoint: Path, rank: int, name: str) -> Any:
    """Return a rank's own tree; if it has none, the first rank's."""
    return read_tree(_folder_of(checkpoint, rank) if has_own(checkpoint, rank, name) else checkpoint, name)


def has_own(checkpoint: Path, rank: int, name: str) -> bool:
    """Whether a rank has a tree of its own, which differs from the first rank's."""
    return (_folder_of(checkpoint, rank) / f"{name}.json").exists()


def _files_of(name: str, tree: Any) -> Files:
    with tempfile.TemporaryDirectory() as folder:
        write_tree(Path(folder), name, tree)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def _digest(name: str, tree: Any) -> str:
    arrays: list[np.ndarray] = []
    structure = json.dumps(encode(tree, name, arrays))
    content = b"".join(array.tobytes() for array in arrays)
    return hashlib.sha256(structure.encode() + content).hexdigest()


def _folder_of(checkpoint: Path, rank: int) -> Path:
    return checkpoint / "ranks" / f"rank-{rank:04d}"
