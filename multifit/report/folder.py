"""What a run left in its folder, as far as it is there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, TypeVar

from ..history import History
from ..plan import Plan

__all__ = ["RunFolder", "read_run"]

FILES = ("settings.json", "plan.json", "plan.txt", "history.json")
PNG = b"\x89PNG\r\n\x1a\n"

Found = TypeVar("Found")


@dataclass
class RunFolder:
    """A run as its folder tells it.

    Attributes
    ----------
    name : str
        How the page calls it: its folder, as it was given.
    record : mapping
        What ``settings.json`` holds; empty where there is none.
    history : History
        The figures; empty where there are none.
    plan : Plan or None
        The plan, where ``plan.json`` has it.
    plan_text : str
        The plan as ``plan.txt`` has it.
    pictures : dict of str to bytes
        The PNG files by name, without the curves, which the page draws itself.
    missing : list of str
        What is not there or cannot be read, and why.
    """

    name: str
    record: Mapping[str, Any] = field(default_factory=dict)
    history: History = field(default_factory=History)
    plan: Plan | None = None
    plan_text: str = ""
    pictures: dict[str, bytes] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def read_run(folder: Path) -> RunFolder:
    """Return what there is in a run's folder; what is missing or damaged is told in it.

    Raises
    ------
    ValueError
        It is no folder of a run: there is none of the files that a run leaves.
    """
    if not any((folder / name).is_file() for name in FILES):
        raise ValueError(
            f"{folder} is no folder of a run: there is no {', '.join(FILES[:-1])} or {FILES[-1]}"
        )
    run = RunFolder(str(folder))
    run.record = _read(run, folder / FILES[0], _record) or {}
    run.plan = _read(run, folder / FILES[1], lambda data: Plan.from_dict(json.loads(data)))
    run.plan_text = _read(run, folder / FILES[2], lambda data: data.decode("utf-8").strip()) or ""
    run.history = _read(run, folder / FILES[3], lambda _: History.from_json(folder / FILES[3])) or run.history
    for path in sorted(folder.glob("*.png")):
        if not path.name.startswith(".") and path.stem != "curves":  # a hidden one is being written
            picture = _read(run, path, _png)
            if picture is not None:
                run.pictures[path.stem] = picture
    return run


def _read(run: RunFolder, path: Path, parse: Callable[[bytes], Found]) -> Found | None:
    try:
        return parse(path.read_bytes())
    except OSError as error:
        run.missing.append(f"{path.name}: {error.strerror}")
    except ValueError as error:
        run.missing.append(f"{path.name} cannot be read: {error}")
    return None


def _record(data: bytes) -> Mapping[str, Any]:
    record = json.loads(data)
    if not isinstance(record, dict):
        raise ValueError("it must be an object")
    return record


def _png(data: bytes) -> bytes:
    if not data.startswith(PNG):
        raise ValueError("it is no PNG")
    return data
