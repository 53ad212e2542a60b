"""``multifit train FILE``: plan, training, table of figures, and a folder of results."""

from __future__ import annotations

import argparse
import logging
import re
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from ..checkpoints import CHECKPOINTS, checkpoints_folder, list_checkpoints
from ..distributed import World
from ..errors import counted, shown
from ..handlers import CheckpointHandler, LogFile, LoggingHandler, ProgressBar, TensorBoardHandler
from ..history import History
from ..locks import locked
from ..log_once import get_logger
from ..taskfile import UsageError
from ..triggers import Every
from .arguments import add_task_arguments, count, quiet
from .first_epoch import AtFirstEpoch
from .outputs import make_folder
from .ranks import add_distributed_arguments, connected, first_shows
from .record import RECORD, RunRecord, read_record, recorded_pictures, write_record
from .results import LOG, then, write_pictures, write_plan, write_results
from .task import Task, output_folder
from .unrecorded import refuse_unrecorded

EVENTS = "tensorboard"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add_task_arguments(parser)
    parser.add_argument("--epochs", type=count, help="how long to train (default: the file's epochs)")
    parser.add_argument(
        "--output", metavar="DIR", help="folder for results (default: runs/<name of the file>)"
    )
    parser.add_argument(
        "--figures",
        metavar="PATTERN",
        action="append",
        type=_pattern,
        help="figures to show while it trains: a name or a regular expression, such as 'val_.*'; may be "
        "repeated (default: the loss and one figure per task)",
    )
    parser.add_argument(
        "--checkpoint-every",
        metavar="K[epochs|batches]",
        type=_schedule,
        help="save a checkpoint every 1epochs or 500batches, for example; runs resume from it bit for bit",
    )
    add_distributed_arguments(parser)
    parser.add_argument(
        "--resume", action="store_true", help="resume from the newest intact checkpoint in the output folder"
    )


def run(options: argparse.Namespace) -> int:
    """Check, train, and write the plan, the history, the parameters and the pictures.

    With several processes, only the first one prints and writes. Returns 0, or 130 if Ctrl-C, SIGTERM or
    SIGHUP ended the training early; the figures so far are written all the same. A fit that is refused leaves
    the files of an earlier run as they are.
    """
    world, folder = connected(options), output_folder(options)
    resume = folder.absolute() if options.resume else None  # the file may change the working directory
    with quiet(options.quiet), first_shows(world, folder) as options.output:
        task = Task(options, _earlier_record(options, folder, world), world=world)
        _check_seed(task)
        _log_settings(task, resume, get_logger(world))
        epochs = task.epochs  # if epochs are missing, this raises before the data is made
        make_folder(task.output)
        with locked(task.output, lambda warning: print(f"multifit: {warning}", file=sys.stderr)):
            _train(task, epochs, resume, options)
    return 130 if task.estimator.state.interrupted else 0


def _train(task: Task, epochs: int, resume: Path | None, options: argparse.Namespace) -> None:
    """Train, write everything, then print the last figures and what was written, even if that is not all."""
    now, begin = f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S %z}", time.monotonic()
    plan = task.check()
    _print(f"{plan}\n", options)
    resumed = task.record or RunRecord("", {}, 0, command=options.command, started=now, seconds=0.0)
    every = options.checkpoint_every or resumed.schedule  # the seeding depends on it

    def record(epochs: int, pictures: list[str], **more: Any) -> str:
        more |= {"pictures": pictures, "command": resumed.command, "started": resumed.started}
        return write_record(task.output, _record(task, epochs, every, **more))

    @cache
    def describe() -> list[str]:
        return [*write_plan(task.output, plan), record(epochs, earlier_pictures())]

    def earlier_pictures() -> list[str]:  # of a run that is resumed
        return recorded_pictures(task.output) or []

    handlers = [AtFirstEpoch(task.output, describe), *_handlers(task, options, every)]
    history = task.fit(handlers, resume)
    names: set[str] = set()
    with ExitStack() as last:
        last.callback(_print_end, task, history, names, options)
        names.update(write_results(task.output, history, task.estimator), describe())
        directions = {name: way for name in history if (way := task.estimator.direction(name))}
        seconds = None if resumed.seconds is None else round(resumed.seconds + time.monotonic() - begin, 2)
        more = {"seconds": seconds, "directions": directions}
        interrupted = task.estimator.state.interrupted
        pictures = earlier_pictures() if interrupted else []
        drawn = () if interrupted else write_pictures(task.output, history, task.pictures)
        with then(lambda: record(epochs if interrupted else history.epochs, pictures, **more)):
            for name in drawn:
                pictures.append(name)
                names.add(name)


def _print_end(task: Task, history: History, names: set[str], options: argparse.Namespace) -> None:
    _print(f"\nafter epoch {history.epochs}\n{history.summary()}\n", options)
    interrupted = task.estimator.state.interrupted
    end = f"interrupted in epoch {history.epochs}" if interrupted else counted(history.epochs, "epoch")
    names = names | {name for name in (LOG, EVENTS, CHECKPOINTS) if _has_content(task.output / name)}
    print(f"{end}; wrote {task.shown_output}: {', '.join(sorted(names))}")


def _has_content(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists() and path.stat().st_size > 0


def _earlier_record(options: argparse.Namespace, folder: Path, world: World) -> RunRecord | None:
    """Return the record of the run to resume, which the first rank reads from its disk for all ranks.

    Raises UsageError if it cannot be read, or if a run that starts from scratch would overwrite results.
    """
    if world.first and not options.resume:
        refuse_unrecorded(folder)
    exists = world.first and options.resume and (folder / RECORD).exists()
    record = read_record(folder, Path(options.file)) if exists else None
    fields = world.from_first(None if record is None else asdict(record))
    return None if fields is None else RunRecord(**fields)


def _check_seed(task: Task) -> None:
    """Raise UsageError for a seed that is not the resumed run's."""
    if task.record is not None and task.seed != task.record.seed:
        raise UsageError(
            f"{task.shown_output} is trained with seed {task.record.seed}, which a resumed run keeps: "
            f"leave out seed {task.seed}, or train from scratch without --resume"
        )


def _log_settings(task: Task, resume: Path | None, logger: logging.Logger) -> None:
    """Log which settings a resumed run keeps; if that is unknown, warn of those that are used instead."""
    for name, value in task.kept.items():
        change = "" if name == "seed" else f"; --set {name}=... changes it if the checkpoint allows that"
        logger.info("%s=%s is kept from the run%s", name, shown(value), change)
    if resume is not None and task.record is None and list_checkpoints(checkpoints_folder(task.output)):
        settings = {**task.file.settings, "seed": task.seed}
        logger.warning(
            "%s has checkpoints but no %s, so the run's settings are not known; used are %s: if the run had "
            "others, put the file back, or give them with --set NAME=VALUE and --seed",
            task.shown_output,
            RECORD,
            ", ".join(f"{name}={shown(value)}" for name, value in settings.items()),
        )


def _handlers(task: Task, options: argparse.Namespace, every: Every | None) -> list[Any]:
    return [
        CheckpointHandler(task.output, every, seed=task.seed),
        LogFile(task.output / LOG),
        *_tensorboard(task.output / EVENTS),
        LoggingHandler(figures=options.figures),
        ProgressBar(enabled=False if options.quiet else None, figures=options.figures),
    ]


def _tensorboard(folder: Path) -> list[Any]:
    try:
        return [TensorBoardHandler(folder)]
    except ImportError:  # nobody asked for events
        return []


def _record(task: Task, epochs: int, every: Every | None, **more: Any) -> RunRecord:
    return RunRecord(
        file=str(task.file.path),
        settings=task.file.settings,
        seed=task.seed,
        epochs=epochs,
        devices=task.devices,
        engine=task.engine,
        compile=task.compile,
        deterministic=task.deterministic,
        precision=task.precision,
        checkpoint_every=None if every is None else [every.n, every.unit],
        file_seed=task.file_seed,
        **more,
    )


def _schedule(text: str) -> Every:
    match = re.fullmatch(r"([1-9][0-9]{,8}) *(epochs?|batch(?:es)?)?", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(
            f'"{text}" is not a schedule; give one such as 1epochs or 500batches'
        )
    return Every(int(match[1]), (match[2] or "epoch")[:5])


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f'"{text}" is not a regular expression: {error}') from None
    return text


def _print(text: str, options: argparse.Namespace) -> None:
    if not options.quiet:
        print(text)
