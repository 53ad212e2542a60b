"""A run's folder of results: figures, plan, parameters, pictures. Each file is written atomically."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Callable, Mapping

from ..files import atomic_path, atomic_write
from ..history import History
from ..plan import Plan
from ..plots import curves
from ..profiling import Profile
from ..taskfile import UsageError

PLAN_WIDTH = 100  # characters per line of plan.txt, whatever terminal the run is in


def make_folder(folder: Path) -> None:
    """Make the folder before the training rather than after it; raise UsageError if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write the results to {folder}: {error.strerror}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"cannot write the results to {folder}: no permission")


def write_plan(folder: Path, plan: Plan) -> list[str]:
    """Write the plan as text and, for `multifit report`, as JSON; return the names of the files."""
    atomic_write(folder / "plan.txt", f"{plan.to_text(PLAN_WIDTH)}\n")
    atomic_write(folder / "plan.json", json.dumps(plan.to_dict(), indent=1) + "\n")
    return ["plan.txt", "plan.json"]


def write_profile(folder: Path, profile: Profile) -> list[str]:
    """Write a profile as text, as JSON and, with matplotlib, as a picture; return the names of the files."""
    atomic_write(folder / "profile.txt", f"{profile.summary()}\n")
    profile.to_json(folder / "profile.json")
    try:
        profile.plot(folder / "profile.png")
    except ImportError as error:
        print(f"multifit: no picture: {error}", file=sys.stderr)
        return ["profile.txt", "profile.json"]
    return ["profile.txt", "profile.json", "profile.png"]


def write_results(folder: Path, history: History, net: Any) -> list[str]:
    """Write the history and the parameters; return the names of the files."""
    history.to_json(folder / "history.json")
    with atomic_path(folder / "final.params") as path:
        net.save_parameters(str(path))
    return ["history.json", "final.params"]


def write_pictures(folder: Path, history: History, pictures: Callable[[], Any]) -> list[str]:
    """Draw the history's curves and the task file's pictures as PNGs; return the names of the files.

    `pictures` returns a dict of matplotlib figures by name; one named "curves" replaces ours. Anything else
    raises UsageError. Without matplotlib nothing is drawn, and a line on stderr says so.
    """
    try:
        figures: dict[str, Any] = {"curves": curves(history)}
    except ImportError as error:
        print(f"multifit: no pictures: {error}", file=sys.stderr)
        return []
    figures.update(_checked(pictures()))
    for name, figure in figures.items():
        with atomic_path(folder / f"{name}.png") as path:
            figure.savefig(path, dpi=130)
    return [f"{name}.png" for name in figures]


def _checked(drawn: Any) -> dict[str, Any]:
    figures = dict(drawn) if isinstance(drawn, Mapping) else {"": drawn}
    for name, figure in figures.items():
        if not (isinstance(name, str) and name and Path(name).name == name and hasattr(figure, "savefig")):
            raise UsageError(
                f"pictures() must return a dict of matplotlib figures by file name, not {drawn!r}"
            )
    return figures
