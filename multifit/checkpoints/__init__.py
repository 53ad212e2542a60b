"""Checkpoint folders: written atomically, verified by hash, listed, and deleted when no longer needed.

This package does not know what is in a checkpoint. The caller fills a folder when writing; a reader gets a
folder whose files are verified to be exactly what was written.
"""

from __future__ import annotations

from .atomic import remove_checkpoint, write_checkpoint
from .integrity import verify
from .manifest import MANIFEST, CheckpointInfo, Manifest, NewerFormatError, read_manifest
from .store import (
    CHECKPOINTS,
    CheckpointStore,
    checkpoints_folder,
    list_checkpoints,
    newest_checkpoint,
    to_delete,
)

__all__ = [
    "CHECKPOINTS",
    "MANIFEST",
    "CheckpointInfo",
    "CheckpointStore",
    "Manifest",
    "NewerFormatError",
    "checkpoints_folder",
    "list_checkpoints",
    "newest_checkpoint",
    "read_manifest",
    "remove_checkpoint",
    "to_delete",
    "verify",
    "write_checkpoint",
]
