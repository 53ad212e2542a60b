"""Checkpoints as folders: written whole or not at all, checked by hash, found again, thinned out.

What is inside a checkpoint is not known here: the writer fills a folder, and the reader gets a folder that is
proved to be what was written.
"""

from __future__ import annotations

from .finding import CHECKPOINTS, Entry, checkpoints_folder, entries, newest_whole
from .manifest import MANIFEST, Manifest, read_manifest
from .retention import superfluous
from .shelf import Shelf
from .wholeness import problems
from .writing import remove, write_checkpoint

__all__ = [
    "CHECKPOINTS",
    "MANIFEST",
    "Entry",
    "Manifest",
    "Shelf",
    "checkpoints_folder",
    "entries",
    "newest_whole",
    "problems",
    "read_manifest",
    "remove",
    "superfluous",
    "write_checkpoint",
]
