"""A run's folder: the names of its files, the record of what it was trained with, and what a fit writes."""

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..checkpoints import CHECKPOINTS, checkpoints_folder
from ..handlers import CheckpointHandler, LogFile, TensorBoardHandler
from ..handlers.handler import Handler, unwrapped
from ..handlers.plots import curves
from ..handlers.printing import key_figures
from ..handlers.triggers import Every
from ..spec.checks.data import one_shot
from ..spec.parsing import coverage
from ..utils.arguments import PathLike
from ..utils.files import atomic_path, atomic_write, check_folder
from ..utils.locks import locked
from ..utils.protocols import MultiEstimator
from ..utils.text import reason
from ..version import installed_versions

RECORD, PLAN, PLAN_TEXT, LOG = "settings.json", "plan.json", "plan.txt", "log.txt"
HISTORY = "history.json"
EXPORT, PREDICTIONS, EVENTS, RANKS = "export", "predictions", "tensorboard", "ranks"  # folders
PARAMETERS, LOSSES = ("final.params", "final.pt"), ("losses.params", "losses.pt")  # by the net's library
# what a training writes; the record last
FILES = *PARAMETERS, *LOSSES, HISTORY, PLAN, PLAN_TEXT, "curves.png", LOG, CHECKPOINTS, EVENTS, RECORD
PLAN_WIDTH = 100  # characters per line of plan.txt, whatever terminal the run is in


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """``settings.json``: what a run was trained with. With the parameters, predicting needs nothing else."""

    file: str | None = None  # the task file's name; None for a run from Python
    settings: dict[str, str] = field(default_factory=dict)  # as --set takes them
    only: list[str] = field(default_factory=list)  # the tasks that were trained; empty for all
    seed: int | None
    file_seed: int | None = None  # the seed under which the file was executed
    epochs: int | None  # how long the run is to be trained
    devices: str | None  # as --devices took them
    engine: str
    compile: bool | str
    deterministic: bool = False
    precision: str
    checkpoint_every: str | None = None  # as --checkpoint-every takes it
    command: str  # that began the run
    started: str = field(default_factory=lambda: f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S %z}")
    pictures: list[str] = field(default_factory=list)  # the files that were drawn at the end
    seconds: float | None = None  # how long it was trained, without what a kill cut off; None while it runs
    tasks: list[str] = field(default_factory=list)  # the validation figure that says most of each
    directions: dict[str, str] = field(default_factory=dict)  # "min" or "max" by figure, where known
    versions: dict[str, str] = field(default_factory=dict)


def write_record(folder: Path, record: RunRecord) -> None:
    """Write the record, with the versions that run."""
    fields = asdict(record) | {"versions": installed_versions()}
    atomic_write(folder / RECORD, json.dumps(fields, indent=2) + "\n")


def read_record(folder: Path, file: str | None) -> RunRecord:
    """Return the record of a run of a task file, or with None of one from Python.

    The folder that the file is in does not matter. Raises ValueError if there is no record, if it cannot be
    read, or if it is of a file with another name.
    """
    try:
        record = RunRecord(**json.loads((folder / RECORD).read_text("utf-8")))
    except OSError as error:
        raise ValueError(f"{folder} is not the folder of a run: {RECORD}: {reason(error)}") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{folder / RECORD} is not the record of a run: {error}") from None
    name = None if file is None else Path(file).name
    if record.file != name:
        of, asked = record.file or "Python, by fit(output=...)", name or "Python"
        more = "" if record.file else f': estimator.load("{folder}") reads its parameters'
        raise ValueError(f"{folder} is a run of {of}, not of {asked}{more}")
    return record


def is_unused(folder: Path) -> bool:
    """Whether a new run can begin in a folder: hidden files, such as a lock, do not count."""
    return not folder.is_dir() or all(each.name.startswith(".") for each in folder.iterdir())


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
    if (folder / RECORD).exists():
        pictures = _pictures(read_record(folder, file))
        _remove(folder, (*pictures, EXPORT, PREDICTIONS, RANKS, *FILES))  # last the record


def _remove(folder: Path, names: Sequence[str]) -> None:
    for path in (folder / name for name in names):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _pictures(record: RunRecord) -> list[str]:
    return [Path(name).name for name in record.pictures if name.endswith(".png")]


class RunWriter(Handler):
    """Writes what a training leaves in its run's folder: for ``fit(output=...)`` and ``multifit train``.

    The fit runs within `writing`. `earlier` is the record of the run that is resumed, if one is.
    """

    first_rank_only = True

    def __init__(self, folder: Path, record: RunRecord, earlier: RunRecord | None) -> None:
        self._began = time.monotonic()
        if earlier is not None:
            self._began -= earlier.seconds or 0.0
            kept = {name: getattr(earlier, name) for name in ("command", "started", "pictures")}
            record = replace(record, **kept)
        self.folder, self.record, self.described = folder, record, False

    @contextmanager
    def writing(
        self, estimator: MultiEstimator, given: Sequence[Any], every: Every | None, *pictures: Any
    ) -> Iterator[list[Any]]:
        """Let a fit write; yield the handlers that are given, and those that write, but for kinds among them.

        All ranks call `pictures`, which return figures by name. A fit that is refused leaves no files; one
        that Optuna prunes leaves all. Raises ValueError, on all ranks, if checkpoints are saved elsewhere.
        """
        is_new = not any((self.folder / name).exists() for name in FILES)
        inner = [unwrapped(each) for each in given]
        added: list[Any] = [self, LogFile(self.folder / LOG)]
        saving = next((each for each in inner if isinstance(each, CheckpointHandler)), None)
        ours = checkpoints_folder(self.folder).resolve()
        if estimator.world.from_first(saving is not None and saving.folder.resolve() != ours):
            raise ValueError(
                f"CheckpointHandler saves outside of the run's folder, from which it is resumed; give {ours}"
            )
        if saving is None:
            added.append(saving := CheckpointHandler(self.folder, every))
        with suppress(ImportError):  # nobody asked for events
            if not any(isinstance(each, TensorBoardHandler) for each in inner):
                added.append(TensorBoardHandler(self.folder / EVENTS))
        schedule = None if saving.every is None else f"{saving.every.n}{saving.every.unit}"
        self.record = replace(self.record, checkpoint_every=schedule)
        try:
            yield [*given, *added]
        except BaseException as error:
            if not self.described and is_new:
                with suppress(OSError):  # the fit's own error says more
                    _remove(self.folder, FILES)
            elif type(error).__name__ == "TrialPruned":
                self.finish(estimator)
            raise
        self.finish(estimator, *pictures)

    def describe(self, estimator: MultiEstimator, **_: Any) -> None:
        """Write the record and the plan, unless that is done: as text and, for `multifit report`, as JSON."""
        if self.described:
            return
        self.described = True
        self.record = replace(self.record, seed=estimator.state.fit_seed)  # which a resumed run keeps
        write_record(self.folder, self.record)
        if estimator.plan is not None:  # a run that had finished has none
            atomic_write(self.folder / PLAN_TEXT, f"{estimator.plan.to_text(PLAN_WIDTH)}\n")
            atomic_write(self.folder / PLAN, json.dumps(estimator.plan.to_dict(), indent=1) + "\n")

    batch_end = describe  # after the first batch, nothing refuses the run any more

    def finish(self, estimator: MultiEstimator, *pictures: Callable[[], Any]) -> None:
        """Write the history, the parameters, the pictures and the final record.

        What can be written is, though the disk may be full; then raises the first error. Each of `pictures`
        returns figures by name.
        """
        history, interrupted = estimator.history, estimator.state.interrupted

        def draw() -> None:
            if not interrupted:
                self.record.pictures.clear()
                self.record.pictures.extend(write_pictures(self.folder, estimator, pictures))

        def close() -> None:
            seconds = round(time.monotonic() - self._began, 2)
            directions = {name: way for name in history if (way := estimator.direction(name))}
            epochs = self.record.epochs if interrupted else history.epochs
            apart = ("val_loss", *(coverage(label) for label in estimator.spec.evaluation.labels))
            known = [name for name in directions if name[:4] == "val_" and not name.endswith(apart)]
            keys = key_figures(known, estimator.spec, estimator.validation_sets)
            # what says most of a single task without a metric is the objective; its loss has the same numbers
            told: Any = {"seconds": seconds, "directions": directions, "tasks": keys or known}
            write_record(self.folder, replace(self.record, epochs=epochs, **told))

        errors: list[Exception] = []
        for write in (
            partial(history.to_json, self.folder / HISTORY),
            partial(estimator.save, self.folder),
            partial(self.describe, estimator),
            draw,
            close,
        ):
            try:
                write()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


def run_plots(
    estimator: MultiEstimator, val_data: Any, batch_axis: int = 0, batches: int | None = None
) -> dict[str, Any]:
    """Evaluate once more at a run's end, and return what the net confuses, as figures by file name.

    All processes must call it. It returns none if no output can be compared, or if the data can be read only
    once.
    """
    usable = val_data is not None and not one_shot(val_data)
    found = estimator.interpret(val_data, batch_axis, batches) if usable else None
    plots = {} if found is None else found.plots()
    return {re.sub(r"[^\w.-]", "_", name): figure for name, figure in plots.items()}


def write_pictures(
    folder: Path, estimator: MultiEstimator, pictures: Sequence[Callable[[], Mapping[str, Any]]]
) -> Iterator[str]:
    """Draw a run's curves, and what each of `pictures` returns, as PNGs; yield the name of each file.

    Those return figures by name; a later one replaces an earlier one. Without matplotlib nothing is drawn,
    and a line in the log says so.
    """
    try:
        ours = {"curves": curves(estimator.history)}
    except ImportError as error:
        estimator.logger.warning("no pictures: %s", error)
        return
    for figures in (lambda: ours, *pictures):
        for name, figure in figures().items():
            draw(figure, folder / f"{name}.png")
            yield f"{name}.png"


def draw(figure: Any, path: Path) -> None:
    """Write a matplotlib figure as a PNG."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=130)


@contextmanager
def writing_run(
    estimator: MultiEstimator,
    record: RunRecord,
    folder: Path,
    resume: PathLike | None,
    given: Sequence[Any],
    pictures: Callable[[], Any],
) -> Iterator[list[Any]]:
    """Let a fit write to its run's folder, as :meth:`RunWriter.writing`; yield the handlers for it.

    Ranks but the first write to temporary folders. A fit that is refused leaves the folder as it was. Raises
    ValueError, on all ranks, if another run writes there, or if the folder is not empty and the run is not
    resumed from it.
    """
    world = estimator.world
    with ExitStack() as stack:
        earlier, refusal = None, None
        if world.first:
            if not folder.exists():
                stack.callback(lambda: folder.rmdir() if folder.is_dir() and not os.listdir(folder) else None)
            try:
                stack.enter_context(locked(folder, estimator.logger.warning))
                earlier = _earlier_record(folder, resume)
            except ValueError as error:
                refusal = str(error)
        if refusal := world.from_first(refusal):
            raise ValueError(refusal)
        if not world.first:
            folder = Path(stack.enter_context(TemporaryDirectory()))
        writer = RunWriter(folder, record, earlier)
        yield stack.enter_context(writer.writing(estimator, given, None, pictures))


def _earlier_record(folder: Path, resume: PathLike | None) -> RunRecord | None:
    """Return the record of the run that is resumed in its folder; raise ValueError for another one."""
    check_folder("output", folder)
    place = None if resume is None else Path(resume).resolve()
    if place is None or folder.resolve() not in (place, *place.parents):
        if not is_unused(folder):
            raise ValueError(
                f"output={str(folder)!r} is not empty: give another folder, or continue the run in it with "
                f"resume={str(folder)!r}"
            )
        return None
    return read_record(folder, None) if (folder / RECORD).exists() else None
