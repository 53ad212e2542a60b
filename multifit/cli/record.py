"""``settings.json``: what a run was trained with, so that its folder says all that predicting needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Mapping

from ..files import atomic_write
from ..gluon.installed import installed_versions
from ..taskfile import UsageError

__all__ = ["read_record", "write_record"]

NAME = "settings.json"


def write_record(folder: Path, file: Path, settings: Mapping[str, Any], **facts: Any) -> str:
    """Write what a run was trained with.

    Parameters
    ----------
    folder : Path
        The run's folder.
    file : Path
        The task file.
    settings : mapping of str to value
        The settings; one that JSON cannot hold cannot be given on a command line either, and is left out.
    **facts : JSON values
        What else to keep: the seed, the number of epochs, the devices.

    Returns
    -------
    str
        The name of the file.
    """
    kept = {name: value for name, value in settings.items() if _is_json(value)}
    record = {"file": str(file), "settings": kept, **facts, "versions": installed_versions()}
    atomic_write(folder / NAME, json.dumps(record, indent=2) + "\n")
    return NAME


def read_record(folder: Path) -> dict[str, Any]:
    """Return what `write_record` wrote.

    Raises
    ------
    UsageError
        The folder is not of a run, or its ``settings.json`` cannot be read.
    """
    try:
        record = json.loads((folder / NAME).read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{folder} is no folder of a run: {NAME}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"cannot read {folder / NAME}: {error}") from None
    if not (isinstance(record, dict) and isinstance(record.get("settings"), dict) and "seed" in record):
        raise UsageError(f"cannot read {folder / NAME}: it must have settings and a seed")
    return record


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
