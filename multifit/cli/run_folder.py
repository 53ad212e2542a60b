"""A run's folder: the names of its files, the record of what it was trained with, and its results."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..checkpoints import CHECKPOINTS
from ..errors import reason
from ..estimator import MultiEstimator
from ..files import atomic_path, atomic_write
from ..gluon.installed import installed_versions
from ..gluon.saved_net import save_net
from ..gluon.snapshot.parameters import OTHERS, write_others
from ..history import History
from ..plots import curves
from ..spec.plan import Plan
from ..taskfile import UsageError

RECORD, PLAN, PLAN_TEXT, LOG = "settings.json", "plan.json", "plan.txt", "log.txt"
HISTORY, PARAMETERS, CURVES = "history.json", "final.params", "curves.png"
EXPORT, PREDICTIONS, EVENTS, RANKS = "export", "predictions", "tensorboard", "ranks"  # folders
# what a training writes; the record last
FILES = PARAMETERS, OTHERS, HISTORY, PLAN, PLAN_TEXT, CURVES, LOG, CHECKPOINTS, EVENTS, RECORD
PLAN_WIDTH = 100  # characters per line of plan.txt, whatever terminal the run is in
WANTED = "pictures() must return a dict of matplotlib figures by file name"


@dataclass(frozen=True)
class RunRecord:
    """``settings.json``: what a run was trained with. With the parameters, predicting needs nothing else."""

    file: str  # the task file's name
    settings: dict[str, str]  # as --set takes them
    seed: int
    file_seed: int  # the seed under which the file was executed
    epochs: int  # how long the run is to be trained
    devices: str | None  # as --devices took them
    engine: str
    compile: bool | str
    deterministic: bool
    precision: str
    checkpoint_every: str | None  # as --checkpoint-every takes it
    command: str  # that began the run
    started: str  # when, with the time zone
    pictures: list[str] = field(default_factory=list)  # the files that were drawn at the end
    seconds: float | None = None  # how long it was trained, without what a kill cut off
    directions: dict[str, str] = field(default_factory=dict)  # "min" or "max" by figure, where known
    versions: dict[str, str] = field(default_factory=dict)


def write_record(folder: Path, record: RunRecord) -> None:
    """Write the record, with the installed versions."""
    torch = sys.modules.get("torch")  # the engine on PyTorch has imported it
    versions = installed_versions() | ({} if torch is None else {"torch": str(torch.__version__)})
    atomic_write(folder / RECORD, json.dumps(asdict(record) | {"versions": versions}, indent=2) + "\n")


def read_record(folder: Path, file: str) -> RunRecord:
    """Return the record of a run of a task file; the file's name is compared, its folder is not.

    Raises UsageError if there is none, if it cannot be read, or if it is of another file.
    """
    try:
        record = RunRecord(**json.loads((folder / RECORD).read_text("utf-8")))
    except OSError as error:
        raise UsageError(f"{folder} is not the folder of a run: {RECORD}: {reason(error)}") from None
    except (TypeError, ValueError) as error:
        raise UsageError(f"{folder / RECORD} is not the record of a run: {error}") from None
    if record.file != Path(file).name:
        raise UsageError(f"{folder} is a run of {record.file}, not of {Path(file).name}")
    return record


def check_unused(folder: Path, file: str, overwrite: bool) -> None:
    """Raise UsageError if a new run must not begin in a folder, because it holds something.

    Hidden files, such as a lock, do not count. To `overwrite` it, it must be the folder of a run of the file.
    """
    if not folder.is_dir() or all(each.name.startswith(".") for each in folder.iterdir()):
        return
    if not overwrite:
        raise UsageError(
            f"{folder} is not empty: --resume continues the run in it, --overwrite removes that run, "
            "--output DIR writes elsewhere"
        )
    read_record(folder, file)


def written(folder: Path, record: RunRecord) -> list[str]:
    """Return the names of what a training left in its folder, but for empty files and folders."""
    paths = [folder / name for name in sorted({*FILES, *_pictures(record)})]
    return [
        path.name
        for path in paths
        if path.exists() and (any(path.iterdir()) if path.is_dir() else path.stat().st_size)
    ]


def remove_run(folder: Path, file: str) -> None:
    """Remove what a run of a task file wrote to its folder, if there is one; other files stay."""
    if not (folder / RECORD).exists():
        return
    pictures = _pictures(read_record(folder, file))
    for name in (*pictures, EXPORT, PREDICTIONS, RANKS, *FILES):  # last the record, by which it is a run's
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _pictures(record: RunRecord) -> list[str]:
    return [Path(name).name for name in record.pictures if name.endswith(".png")]


def write_plan(folder: Path, plan: Plan) -> None:
    """Write the plan as text and, for `multifit report`, as JSON."""
    atomic_write(folder / PLAN_TEXT, f"{plan.to_text(PLAN_WIDTH)}\n")
    atomic_write(folder / PLAN, json.dumps(plan.to_dict(), indent=1) + "\n")


def write_parameters(folder: Path, estimator: MultiEstimator) -> None:
    """Write the parameters of the net and of the losses."""
    save_net(estimator.net, folder / PARAMETERS)
    write_others(folder, estimator.net, estimator.parameters)


def write_pictures(folder: Path, history: History, *pictures: Callable[[], Any]) -> Iterator[str]:
    """Draw the history's curves and other pictures as PNGs; yield the name of each file.

    Each of `pictures` returns a dict of matplotlib figures by name; later ones replace earlier ones, and one
    named "curves" replaces ours. Anything else raises UsageError. Without matplotlib nothing is drawn, and a
    line on stderr says so.
    """
    try:
        ours = curves(history)
    except ImportError as error:
        print(f"multifit: no pictures: {error}", file=sys.stderr)
        return
    draw(ours, folder / CURVES)
    yield CURVES
    for drawn in (each() for each in pictures):
        if not isinstance(drawn, Mapping):
            raise UsageError(f"{WANTED}, not {drawn!r}")
        for name, figure in drawn.items():
            if not (isinstance(name, str) and Path(name).name == name and hasattr(figure, "savefig")):
                raise UsageError(f"{WANTED}; {name!r}: {figure!r} is not one, or its name has a folder")
            draw(figure, folder / f"{name}.png")
            yield f"{name}.png"


def draw(figure: Any, path: Path) -> None:
    """Write a matplotlib figure as a PNG."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=130)
