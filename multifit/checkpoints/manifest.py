"""A checkpoint's manifest: format version, the files with their hashes, and facts about the checkpoint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ..files import parse_json, read_regular

MANIFEST = "manifest.json"
# The format version of all files of a checkpoint. A newer version may change anything but how the manifest is
# hashed, so that a newer checkpoint does not look like a damaged one.
VERSION = 2
_RESERVED = ("files", "name", "sha256", "version")  # keys that are not facts


class NewerFormatError(ValueError):
    """The checkpoint is intact, but in a format of a newer multifit."""


@dataclass(frozen=True)
class Manifest:
    """The content of ``manifest.json``.

    `name` is that of the checkpoint's folder. `files` are the ``size`` in bytes and ``sha256`` in hex of each
    file, by its path in the folder (with slashes). `facts` are what the writer adds: epoch, step, monitored
    value … Raises ValueError if a fact has a reserved name.
    """

    name: str
    files: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)
    version: int = VERSION

    def __post_init__(self) -> None:
        reserved = sorted(set(self.facts) & set(_RESERVED))
        if reserved:
            raise ValueError(
                f'the manifest of checkpoint "{self.name}" cannot have a fact "{reserved[0]}": '
                f"the names {', '.join(_RESERVED)} are reserved; rename the fact"
            )


class CheckpointInfo(NamedTuple):
    """What the manifest says about a checkpoint; its files are not verified."""

    path: Path
    serial: int = 0  # 1-based sequence number in the parent folder; 0 if unknown
    step: int = 0  # number of batches trained before it
    complete: bool = False  # whether its epoch was complete
    values: Mapping[str, float] = MappingProxyType({})  # of the monitored figures that were measured
    name: str = ""  # the folder's name when it was written

    @property
    def order(self) -> tuple[int, int, bool]:
        """Sort key, greater for newer checkpoints.

        The order of writing counts first: a new run in the folder of an old one, which may have trained
        longer, must find its own checkpoints.
        """
        return self.serial, self.step, self.complete


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of ``manifest.json``, which end in a hash of the rest.

    Raises TypeError or ValueError if a fact cannot be written as JSON (NaN and infinity cannot).
    """
    return _encode(
        {"version": manifest.version, "name": manifest.name, "files": manifest.files, **manifest.facts}
    )


def read_manifest(checkpoint: Path) -> Manifest:
    """Read the manifest of a checkpoint and verify its own hash, not its files'.

    Raises ValueError if it is missing, or if :func:`parse_manifest` raises it.
    """
    try:
        data = read_regular(checkpoint / MANIFEST)
    except FileNotFoundError:
        raise ValueError(f"{MANIFEST} is missing") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{MANIFEST} cannot be read: {getattr(error, 'strerror', error)}") from None
    return parse_manifest(data)


def parse_manifest(data: bytes) -> Manifest:
    """Return the manifest that :func:`encode_manifest` encoded.

    Raises NewerFormatError if a newer multifit wrote it; ValueError if it is damaged, or of another program.
    """
    try:
        content = parse_json(data)
    except ValueError as error:
        raise ValueError(f"{MANIFEST} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{MANIFEST} holds a JSON {type(content).__name__}; valid is an object")
    _check_hash(content, data)
    _check_version(content.get("version"))
    name, files = content.get("name"), content.get("files")
    if not isinstance(name, str) or not isinstance(files, dict):
        raise ValueError(f'{MANIFEST} has no valid "name" and "files"')
    facts = {key: value for key, value in content.items() if key not in _RESERVED}
    return Manifest(name, files, facts, content["version"])


def read_info(checkpoint: Path) -> CheckpointInfo:
    """Read what the manifest says about a checkpoint; facts of a wrong type are ignored."""
    manifest = read_manifest(checkpoint)
    facts = manifest.facts
    return CheckpointInfo(
        checkpoint,
        _int_or_zero(facts.get("serial")),
        _int_or_zero(facts.get("step")),
        facts.get("complete") is True,
        _values(facts),
        manifest.name,
    )


def _check_hash(content: Mapping[str, Any], data: bytes) -> None:
    # Compare all bytes, not the hash alone: a changed byte that means nothing to JSON is damage too.
    if _encode({key: value for key, value in content.items() if key != "sha256"}) != data:
        raise ValueError(f"{MANIFEST} is damaged: its hash does not match its content")


def _check_version(version: Any) -> None:
    if type(version) is int and version > VERSION:
        raise NewerFormatError(
            f"{MANIFEST} has format version {version}, and this multifit reads {VERSION}: a newer multifit "
            "wrote the checkpoint; resume with that version, or give another folder"
        )
    if type(version) is not int or version != VERSION:
        raise ValueError(
            f"{MANIFEST} has format version {version!r}, and this multifit reads {VERSION}: "
            "it is not a checkpoint of this multifit"
        )


def _encode(content: Mapping[str, Any]) -> bytes:
    return _json({**content, "sha256": hashlib.sha256(_json(content)).hexdigest()})


def _json(content: Mapping[str, Any]) -> bytes:
    # Escaped to ASCII, so that any file name that Python can hold can be written.
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode("ascii")


def _values(facts: Mapping[str, Any]) -> dict[str, float]:
    values = facts.get("values", {facts.get("monitor"): facts.get("value")})  # older ones monitor one figure
    if not isinstance(values, dict):
        return {}
    numbers = {name: value for name, value in values.items() if type(value) in (int, float)}
    return {name: float(value) for name, value in numbers.items() if isinstance(name, str)}


def _int_or_zero(fact: Any) -> int:
    return fact if type(fact) is int else 0
