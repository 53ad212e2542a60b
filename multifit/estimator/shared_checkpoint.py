"""The checkpoint from which all ranks resume."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Callable, Sequence

import numpy as np

from ..checkpoints import MANIFEST, read_manifest
from ..distributed import World
from ..files import sha256
from ..protocols import Numbers

FromFirst = Callable[[Sequence[Numbers]], "list[Numbers]"]


class SharedCheckpoint:
    """The checkpoint that the first rank has found, made available to all ranks.

    `path` is where a rank reads it: the place where it was found or, if some rank cannot see it there, a
    temporary copy. None if the first rank has found no checkpoint. ``from_first(arrays)`` returns the first
    rank's arrays.
    """

    def __init__(self, world: World, found: Path | None, from_first: FromFirst) -> None:
        self._copy: Any = None  # a temporary folder that lives as long as this object
        path = world.from_first(None if found is None else str(found))
        self.path = None if path is None else Path(path)
        if self.path is not None and len(set(world.gather(_manifest_hash(self.path)))) > 1:
            self._receive(world, self.path, from_first)

    def _receive(self, world: World, path: Path, from_first: FromFirst) -> None:
        names = world.from_first([MANIFEST, *read_manifest(path).files] if world.first else None)
        contents = [np.fromfile(path / name, "uint8") for name in names] if world.first else []
        contents = from_first(contents)
        if world.first:
            return
        self._copy = tempfile.TemporaryDirectory()
        self.path = Path(self._copy.name) / path.name
        for name, content in zip(names, contents):
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            (self.path / name).write_bytes(content.tobytes())


def _manifest_hash(path: Path) -> str | None:
    """Return a hash, which is equal on two ranks that see the same checkpoint; None if there is none."""
    try:
        return sha256(path / MANIFEST)
    except OSError:
        return None
