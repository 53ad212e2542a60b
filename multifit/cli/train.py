"""``multifit train FILE``: plan, training, table of figures, and a folder of results."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from ..checkpoints import CHECKPOINTS
from ..errors import SpecError, counted
from ..handlers import CheckpointHandler, LogFile, LoggingHandler, ProgressBar, TensorBoardHandler
from ..triggers import Every
from .arguments import add_task_arguments, quiet
from .record import NAME as RECORD
from .record import RunRecord, read_record, write_record
from .results import make_folder, write_pictures, write_plan, write_results
from .run import Run, output_folder

NAME = "train"
HELP = "train what a task file declares and write the results"
LOG, EVENTS = "log.txt", "tensorboard"
UNITS = {"epoch": "epoch", "epochs": "epoch", "batch": "batch", "batches": "batch"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add_task_arguments(parser)
    parser.add_argument("--epochs", type=int, help="how long to train (default: the file's epochs)")
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
        help="keep checkpoints, such as 1epochs or 500batches; from one of them a run resumes bit for bit",
    )
    parser.add_argument(
        "--resume", action="store_true", help="resume from the newest intact checkpoint in the output folder"
    )


def run(options: argparse.Namespace) -> int:
    """Check, train, and write the history, the plan, the parameters and the pictures.

    Returns 0, or 130 if Ctrl-C or SIGTERM ended the training early; the figures so far are written all the
    same.
    """
    with quiet(options.quiet):
        task = Run(options, _earlier_record(options))
        epochs = task.epochs  # missing epochs are an error before the data are made
        make_folder(task.output)
        plan = task.check()
        _print(f"{plan}\n", options)
        every = _checkpoint_schedule(task, options)
        names = {*write_plan(task.output, plan), _write_record(task, epochs, every)}
        try:
            history = task.fit(_handlers(task, options, every), task.output if options.resume else None)
        except SpecError:
            if task.record is not None:  # the checkpoints are of a run with other settings: keep those
                write_record(task.output, task.record)
            raise
        _print(f"\nafter epoch {history.epochs}\n{history.summary()}\n", options)
        interrupted = task.estimator.state.interrupted
        names |= {*write_results(task.output, history, task.estimator.net)}
        _write_record(task, epochs if interrupted else history.epochs, every)
        if not interrupted:
            names |= {*write_pictures(task.output, history, task.pictures)}
        names |= {name for name in (LOG, EVENTS, CHECKPOINTS) if (task.output / name).exists()}
    end = f"interrupted in epoch {history.epochs}" if interrupted else counted(history.epochs, "epoch")
    print(f"{end}; wrote {task.output}: {', '.join(sorted(names))}")
    return 130 if interrupted else 0


def _earlier_record(options: argparse.Namespace) -> RunRecord | None:
    folder = output_folder(options)
    exists = options.resume and (folder / RECORD).exists()
    return read_record(folder, Path(options.file)) if exists else None


def _checkpoint_schedule(task: Run, options: argparse.Namespace) -> Every | None:
    """Return the schedule of checkpoints; a resumed run keeps its own, on which its seeding depends."""
    earlier = None if task.record is None else task.record.schedule
    new: Every | None = options.checkpoint_every
    return new or earlier


def _handlers(task: Run, options: argparse.Namespace, every: Every | None) -> list[Any]:
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
    except ImportError as error:  # optional: the run goes on without events
        print(f"multifit: no TensorBoard events: {error}", file=sys.stderr)
        return []


def _write_record(task: Run, epochs: int, every: Every | None) -> str:
    record = RunRecord(
        file=str(task.task.path),
        settings=task.task.settings,
        seed=task.seed,
        epochs=epochs,
        devices=[str(context) for context in task.estimator.context],
        precision=task.precision,
        checkpoint_every=None if every is None else [every.n, every.unit],
    )
    return write_record(task.output, record)


def _schedule(text: str) -> Every:
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(number) :].strip() or "epochs"
    if not number.strip().isdigit() or int(number) < 1 or unit not in UNITS:
        raise argparse.ArgumentTypeError(f'"{text}" is not a schedule; write such as 1epochs or 500batches')
    return Every(int(number), UNITS[unit])


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f'"{text}" is not a regular expression: {error}') from None
    return text


def _print(text: str, options: argparse.Namespace) -> None:
    if not options.quiet:
        print(text)
