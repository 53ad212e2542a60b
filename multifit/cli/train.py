"""``multifit train FILE``: plan, training, table of figures, and a folder of results."""

import argparse
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

from ..checkpoints import checkpoints_folder, list_checkpoints
from ..distributed import World
from ..errors import counted, shown
from ..events import Handler
from ..handlers import CheckpointHandler, LogFile, LoggingHandler, ProgressBar, TensorBoardHandler
from ..locks import locked
from ..log_once import get_logger
from ..protocols import MultiEstimator
from ..taskfile import UsageError
from ..triggers import Every
from .common import add_task_arguments, count, quiet
from .ranks import add_distributed_arguments, connected, first_shows
from .run_folder import (
    EVENTS,
    HISTORY,
    LOG,
    RECORD,
    RunRecord,
    check_unused,
    read_record,
    remove_run,
    write_parameters,
    write_pictures,
    write_plan,
    write_record,
    written,
)
from .task import Choices, Task, output_folder


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
    used = parser.add_mutually_exclusive_group()
    used.add_argument(
        "--resume", action="store_true", help="resume from the newest intact checkpoint in the output folder"
    )
    used.add_argument(
        "--overwrite", action="store_true", help="first remove the run of this file in the output folder"
    )


def run(options: argparse.Namespace) -> int:
    """Check, train, and write the plan, the history, the parameters and the pictures.

    With several processes, only the first one prints and writes. Returns 0, or 130 if Ctrl-C, SIGTERM or
    SIGHUP ended the training early; the figures so far are written all the same. What does not fit is
    refused before the folder changes.
    """
    world, folder = connected(options), output_folder(options)
    resume = folder.absolute() if options.resume else None  # the file may change the working directory
    with quiet(options.quiet):
        record = _earlier_record(options, folder, world)
        with first_shows(world, folder) as options.output:
            task = Task(Choices(options, record, resumes=True), world=world)
            if record is not None and task.choices.seed != record.seed:
                raise UsageError(
                    f"{folder} is trained with seed {record.seed}, which a resumed run keeps: "
                    f"leave out seed {task.choices.seed}, or train from scratch without --resume"
                )
            for name, value in task.choices.kept.items():
                get_logger(world).info("%s=%s is kept from the run, not the file's", name, shown(value))
            task.epochs  # noqa: B018, if nothing says how long, this raises before the data is made
            task.output.mkdir(parents=True, exist_ok=True)
            with locked(task.output, lambda warning: print(f"multifit: {warning}", file=sys.stderr)):
                _train(task, record, resume, options)
    return 130 if task.estimator.state.interrupted else 0


def _earlier_record(options: argparse.Namespace, folder: Path, world: World) -> RunRecord | None:
    """Return the record of the run to resume, which the first rank reads from its disk for all ranks.

    Raises UsageError if it cannot be read, or if a run that starts from scratch finds the folder in use.
    """
    record = None
    if world.first and not options.resume:
        check_unused(folder, options.file, options.overwrite)
    elif world.first and ((folder / RECORD).exists() or list_checkpoints(checkpoints_folder(folder))):
        record = read_record(folder, options.file)
    fields = world.from_first(None if record is None else asdict(record))
    return None if fields is None else RunRecord(**fields)


def _train(task: Task, resumed: RunRecord | None, resume: Path | None, options: argparse.Namespace) -> None:
    """Train, write everything, then print the last figures and what was written, even if that is not all."""
    begin, folder = time.monotonic(), task.output
    plan = task.check()
    _print(f"{plan}\n", options)
    if options.overwrite and task.results["world"].first:
        remove_run(folder, options.file)
    every = options.checkpoint_every
    if every is None and resumed is not None and resumed.checkpoint_every is not None:
        every = _schedule(resumed.checkpoint_every)
    record = _record(task, resumed, every, options)

    @cache
    def describe() -> None:
        write_record(folder, record)
        write_plan(folder, plan)

    if resumed is None:
        describe()
    history = task.fit([_AtFirstEpoch(describe), *_handlers(task, options, every)], resume)
    interrupted = task.estimator.state.interrupted

    def draw() -> None:
        if not interrupted:
            record.pictures.clear()
            for name in write_pictures(folder, history, task.plots, task.pictures):
                record.pictures.append(name)

    def finish() -> None:
        seconds = (resumed and resumed.seconds or 0.0) + time.monotonic() - begin
        directions = {name: way for name in history if (way := task.estimator.direction(name))}
        epochs = record.epochs if interrupted else history.epochs
        last = replace(record, epochs=epochs, seconds=round(seconds, 2), directions=directions)
        write_record(folder, last)

    errors: list[Exception] = []
    writes: list[Callable[[], object]] = [
        partial(history.to_json, folder / HISTORY),
        partial(write_parameters, folder, task.estimator),
        describe,
        draw,
        finish,
    ]
    for write in writes:
        try:
            write()
        except Exception as error:  # what can be written is, though the disk may be full
            errors.append(error)
    _print(f"\nafter epoch {history.epochs}\n{history.summary()}\n", options)
    end = f"interrupted in epoch {history.epochs}" if interrupted else counted(history.epochs, "epoch")
    print(f"{end}; wrote {task.shown_output}: {', '.join(written(folder, record))}")
    if errors:
        raise errors[0]


class _AtFirstEpoch(Handler):
    """Calls a function when the first epoch begins: nothing refuses a resumed run any more."""

    first_rank_only = True

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def epoch_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        self._call()


def _handlers(task: Task, options: argparse.Namespace, every: Every | None) -> list[Any]:
    try:
        events = [TensorBoardHandler(task.output / EVENTS)]
    except ImportError:  # nobody asked for events
        events = []
    return [
        CheckpointHandler(task.output, every, seed=task.choices.seed),
        LogFile(task.output / LOG),
        *events,
        LoggingHandler(figures=options.figures),
        ProgressBar(enabled=False if options.quiet else None, figures=options.figures),
    ]


def _record(
    task: Task, resumed: RunRecord | None, every: Every | None, options: argparse.Namespace
) -> RunRecord:
    chosen = task.choices
    return RunRecord(
        file=task.file.path.name,
        settings=task.file.texts,
        seed=chosen.seed,
        file_seed=chosen.file_seed,
        epochs=task.epochs,
        devices=chosen.devices,
        engine=chosen.engine,
        compile=chosen.compile,
        deterministic=chosen.deterministic,
        precision=chosen.precision,
        checkpoint_every=None if every is None else f"{every.n}{every.unit}",
        command=resumed.command if resumed else options.command,
        started=resumed.started if resumed else f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S %z}",
        pictures=list(resumed.pictures) if resumed else [],
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
