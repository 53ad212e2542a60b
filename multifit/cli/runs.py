"""Read what a run has written to its folder."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from ..handlers.history import History, over_seeds, seed_folders
from ..utils.files import parse_json
from .diagram import COMPUTED, Diagram, diagrams

FILES = SETTINGS, PLAN, PLAN_TEXT, HISTORY = "settings.json", "plan.json", "plan.txt", "history.json"
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"

Content = TypeVar("Content")


@dataclass
class RunFolder:
    """The content of a run's folder; fields whose file is missing are empty."""

    name: str  # the run's title on the page: the path of its folder, as given
    record: dict[str, object] = field(default_factory=dict)  # settings.json
    directions: Mapping[str, str] = field(default_factory=dict)  # "min" or "max" by figure, where known
    history: History = field(default_factory=History)
    diagrams: list[Diagram] = field(default_factory=list)  # of the plan's stages
    notices: list[str] = field(default_factory=list)
    declared: set[str] = field(default_factory=set)  # the names of the losses and metrics of training
    plan_text: str = ""
    pictures: dict[str, bytes] = field(default_factory=dict)  # the PNG files, without the curves
    missing: list[str] = field(default_factory=list)  # files that are missing or damaged, and why
    seeds: dict[str, History] = field(default_factory=dict)  # of a run with several; `history` has the means
    spread: History = field(default_factory=History)  # their standard deviations


def read_run(folder: Path) -> RunFolder:
    """Read a run's folder; missing and damaged files are listed in ``missing``.

    The folder of several seeds is read as one run, with plan and pictures of the first. Raises ValueError if
    the folder has none of the files that a run writes.
    """
    if folders := seed_folders(folder):
        runs = {each.name: read_run(each) for each in folders}
        seeds = {name: each.history for name, each in runs.items()}
        mean, spread = over_seeds(list(seeds.values()))
        run = replace(runs[folders[0].name], name=str(folder), history=mean, spread=spread, seeds=seeds)
        run.record["seed"] = ", ".join(str(each.record.get("seed")) for each in runs.values())
        run.missing = [f"{name}: {text}" for name, each in runs.items() for text in each.missing]
        return run
    if not any((folder / name).is_file() for name in FILES):
        raise ValueError(f"{folder} is not the folder of a run: it has none of {', '.join(FILES)}")
    run = RunFolder(str(folder))
    run.record = _read(run, folder / SETTINGS, _parse_record) or {}
    run.record.pop("tasks", None)  # the figures that compare reads
    known = run.record.pop("directions", None)
    ways = {name: str(way) for name, way in known.items()} if isinstance(known, dict) else {}
    run.directions = {"train_loss": "min", "val_loss": "min", **ways}
    _read(run, folder / PLAN, lambda data: _parse_plan(run, parse_json(data)))
    run.plan_text = _read(run, folder / PLAN_TEXT, lambda data: data.decode("utf-8").strip()) or ""
    run.history = _read(run, folder / HISTORY, lambda _: History.from_json(folder / HISTORY)) or run.history
    for path in sorted(folder.glob("*.png")):
        if not path.name.startswith(".") and path.stem != "curves":  # hidden files are being written
            picture = _read(run, path, _check_png)
            if picture is not None:
                run.pictures[path.stem] = picture
    return run


def _read(run: RunFolder, path: Path, parse: Callable[[bytes], Content]) -> Content | None:
    try:
        return parse(path.read_bytes())
    except OSError as error:
        run.missing.append(f"{path.name}: {error.strerror}")
    except (KeyError, TypeError, ValueError) as error:
        run.missing.append(f"{path.name} cannot be read: {error}")
    return None


def _parse_plan(run: RunFolder, plan: dict[str, Any]) -> None:
    run.diagrams, run.notices = diagrams(plan), [str(notice) for notice in plan["notices"]]
    rows = [] if plan["train"] is None else plan["train"]["rows"]
    run.declared = {name for what, name, *_ in rows if what in COMPUTED}


def _parse_record(data: bytes) -> dict[str, object]:
    record = parse_json(data, finite=False)
    if not isinstance(record, dict):
        raise ValueError("it must be an object")
    record.pop("pictures", None)  # the page shows them
    return record


def _check_png(data: bytes) -> bytes:
    if not data.startswith(PNG_SIGNATURE):
        raise ValueError("it is not a PNG file")
    return data
