"""The list of what a checkpoint consists of, and what it says of itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["MANIFEST", "VERSION", "Manifest", "encoded", "read_manifest"]

MANIFEST = "manifest.json"
VERSION = 1
_OWN = ("files", "name", "sha256", "version")  # keys that are no facts


@dataclass(frozen=True)
class Manifest:
    """What ``manifest.json`` says.

    Parameters
    ----------
    name : str
        The name of the checkpoint's folder.
    files : mapping of str to mapping
        For each file, by its path in the folder with slashes: ``size`` in bytes and ``sha256`` in hex.
    facts : mapping of str to JSON
        What the writer tells: epoch, step …

    Raises
    ------
    ValueError
        A fact has a name that the manifest needs for itself.
    """

    name: str
    files: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        taken = sorted(set(self.facts) & set(_OWN))
        if taken:
            raise ValueError(
                f'the manifest of checkpoint "{self.name}" cannot have a fact "{taken[0]}": '
                "it has something else of that name; call the fact otherwise"
            )


def encoded(manifest: Manifest) -> bytes:
    """Return the manifest as the bytes of its file, which end in a hash of themselves.

    Raises
    ------
    TypeError, ValueError
        A fact is no JSON (NaN and infinity are none either).
    """
    content = {"version": VERSION, "name": manifest.name, "files": manifest.files, **manifest.facts}
    digest = hashlib.sha256(_text(content)).hexdigest()
    return _text({**content, "sha256": digest})


def read_manifest(checkpoint: Path) -> Manifest:
    """Return what the manifest of a checkpoint says.

    That its own bytes are those that were written is checked here; that the files are, by `problems`.

    Raises
    ------
    ValueError
        There is none, or it cannot be used; the message says which of the two, and names the file.
    """
    try:
        data = (checkpoint / MANIFEST).read_bytes()
    except FileNotFoundError:
        raise ValueError(f"{MANIFEST} is missing") from None
    except OSError as error:
        raise ValueError(f"{MANIFEST} cannot be read: {error.strerror}") from None
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{MANIFEST} is no JSON: {error}") from None
    return _checked(content, data)


def _checked(content: Any, data: bytes) -> Manifest:
    if not isinstance(content, dict):
        raise ValueError(f"{MANIFEST} is a JSON {type(content).__name__}; valid is an object")
    version = content.get("version")
    if type(version) is not int or version != VERSION:
        raise ValueError(
            f"{MANIFEST} is of version {version!r}; this multifit reads version {VERSION}, "
            "so the checkpoint is another program's, another multifit's, or damaged"
        )
    name, files = content.get("name"), content.get("files")
    if not isinstance(name, str) or not isinstance(files, dict):
        raise ValueError(f'{MANIFEST} has no usable "name" and "files"')
    manifest = Manifest(name, files, {key: value for key, value in content.items() if key not in _OWN})
    # Not the hash alone: whoever changes a byte that means nothing to JSON has changed the file too.
    if not _is(manifest, data):
        raise ValueError(f"{MANIFEST} is not as it was written: its hash does not fit its content")
    return manifest


def _is(manifest: Manifest, data: bytes) -> bool:
    try:
        return encoded(manifest) == data
    except ValueError:  # a NaN, which Python reads
        return False


def _text(content: Mapping[str, Any]) -> bytes:
    # Escaped to ASCII, so that every name that Python can hold can be written.
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode("ascii")
