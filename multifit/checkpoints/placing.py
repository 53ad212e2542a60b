"""Giving a folder the name of a checkpoint, whatever has it now."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

from .hidden import hidden_name
from .wholeness import strangers

__all__ = ["not_ours", "take_place"]


def take_place(temporary: Path, target: Path) -> Path | None:
    """Give the folder `temporary` the name `target`.

    A checkpoint of that name goes to a hidden name. What is not surely a checkpoint and nothing but that goes
    to ``<name>.old``, or ``.old2`` ….

    Returns
    -------
    Path or None
        The checkpoint that had the name before, for the caller to discard.

    Raises
    ------
    OSError
        It cannot be done; what had the name has it again, or is whole under the other name.
    """
    aside = _aside(target) if os.path.lexists(target) else None
    if aside is None:
        os.replace(temporary, target)
        return None
    os.replace(target, aside)
    try:
        os.replace(temporary, target)
    except BaseException:  # a second Ctrl-C comes at any moment
        os.replace(aside, target)
        raise
    return aside if aside.name.startswith(".") else None


def _aside(target: Path) -> Path:
    if not_ours(target) is None:
        return target.with_name(hidden_name())
    names = (f"{target.name}.old{number if number > 1 else ''}" for number in count(1))
    return next(path for path in map(target.with_name, names) if not os.path.lexists(path))


def not_ours(folder: Path) -> str | None:
    """Return why a folder must not be removed as a checkpoint; None if it may."""
    try:
        found = strangers(folder)
    except ValueError as error:
        return f"it is no checkpoint: {error}"
    return f"{found[0]} in it does not belong to the checkpoint" if found else None
