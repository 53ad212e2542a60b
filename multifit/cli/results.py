"""A run's folder of results: figures, plan, parameters, pictures. Each file is written atomically."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Callable

from ..estimator import MultiEstimator
from ..files import atomic_path, atomic_write
from ..gluon.saved_net import save_net
from ..gluon.snapshot.parameters import write_others
from ..history import History
from ..plan import Plan
from ..plots import curves
from ..profiling import Profile
from ..taskfile import UsageError

PARAMETERS, HISTORY, CURVES = "final.params", "history.json", "curves.png"
PLAN, PLAN_TEXT, LOG = "plan.json", "plan.txt", "log.txt"
EXPORT = "export"  # the folder of exports
LONGEST = 255  # bytes of a file's name
WANTED = "pictures() must return a dict of matplotlib figures by file name"
PLAN_WIDTH = 100  # characters per line of plan.txt, whatever terminal the run is in


def write_plan(folder: Path, plan: Plan) -> list[str]:
    """Write the plan as text and, for `multifit report`, as JSON; return the names of the files."""
    atomic_write(folder / PLAN_TEXT, f"{plan.to_text(PLAN_WIDTH)}\n")
    atomic_write(folder / PLAN, json.dumps(plan.to_dict(), indent=1) + "\n")
    return [PLAN_TEXT, PLAN]


def write_profile(folder: Path, profile: Profile) -> list[str]:
    """Write a profile as text and as JSON; return the names of the files."""
    atomic_write(folder / "profile.txt", f"{profile}\n")
    atomic_write(folder / "profile.json", json.dumps(asdict(profile), indent=1) + "\n")
    return ["profile.json", "profile.txt"]


def write_results(folder: Path, history: History, estimator: MultiEstimator) -> list[str]:
    """Write the history, and the parameters of the net and the losses; return the names of the files."""
    names, net = [HISTORY, PARAMETERS], estimator.net
    # Each one is written, even if another cannot be
    others = then(lambda: names.extend(write_others(folder, net, estimator.parameters)))
    with others, then(lambda: save_net(net, folder / PARAMETERS)):
        history.to_json(folder / HISTORY)
    return names


@contextmanager
def then(step: Callable[[], object]) -> Iterator[None]:
    """Take a step after the block, even if the block fails: its error then counts, not one of the step."""
    try:
        yield
    except BaseException:
        with suppress(OSError):  # such as of the same full disk
            step()
        raise
    step()


def write_pictures(folder: Path, history: History, pictures: Callable[[], Any]) -> Iterator[str]:
    """Draw the history's curves and the task file's pictures as PNGs; yield the name of each file.

    `pictures` returns a dict of matplotlib figures by name; one named "curves" replaces ours. Anything else
    raises UsageError. Without matplotlib nothing is drawn, and a line on stderr says so.
    """
    try:
        ours = curves(history)
    except ImportError as error:
        print(f"multifit: no pictures: {error}", file=sys.stderr)
        return
    draw(ours, folder / CURVES)
    yield CURVES
    for name, figure in _checked(pictures()).items():
        draw(figure, folder / f"{name}.png")
        yield f"{name}.png"


def draw(figure: Any, path: Path) -> None:
    """Write a matplotlib figure as a PNG."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=130)


def _is_file_name(name: object) -> bool:
    """Return whether a name is valid as a picture's file name on all usual file systems."""
    return (
        isinstance(name, str)
        and bool(name)
        and Path(name).name == name
        and len(f"{name}.png".encode("utf-8", "replace")) <= LONGEST
    )


def _checked(drawn: Any) -> dict[str, Any]:
    if not isinstance(drawn, Mapping):
        raise UsageError(f"{WANTED}, not {drawn!r}")
    for name, figure in drawn.items():
        if not _is_file_name(name):
            most = LONGEST - len(".png")
            raise UsageError(f"{WANTED}: {name!r} has a folder, is empty or exceeds {most} bytes")
        if not hasattr(figure, "savefig"):
            raise UsageError(f"{WANTED}: {name!r} is {figure!r}")
    return dict(drawn)
