"""``multifit train FILE``: plan, training, table of figures, and a folder of results."""

from __future__ import annotations

import argparse
from typing import Any

from ..checkpoints import CHECKPOINTS
from ..handlers import CheckpointHandler, LogFile, ProgressBar
from ..triggers import Every
from .record import write_record
from .results import check_folder, write_pictures, write_plan, write_results
from .resumed import ResumedRun
from .run import Run, add_task_arguments, hushed

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "train"
HELP = "train what a task file declares and write the results"
LOG = "log.txt"
UNITS = {"epoch": "epoch", "epochs": "epoch", "batch": "batch", "batches": "batch"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what this command takes."""
    add_task_arguments(parser)
    parser.add_argument("--epochs", type=int, help="how long to train (default: the file's epochs)")
    parser.add_argument("--output", metavar="DIR", help="where results go (default: runs/<name of the file>)")
    parser.add_argument(
        "--checkpoint-every",
        metavar="K[epochs|batches]",
        type=_rhythm,
        help="keep checkpoints, such as 1epochs or 500batches; from one of them a run resumes bit for bit",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on from the newest whole checkpoint in the output folder"
    )


def run(options: argparse.Namespace) -> int:
    """Check, train, and write the history, the plan, the parameters and the pictures.

    Returns
    -------
    int
        0, or 130 where Ctrl-C or SIGTERM ended the training early; the figures so far are written all the
        same.
    """
    with hushed(options.quiet):
        task = (ResumedRun if options.resume else Run)(options)
        say = _nothing if options.quiet else print
        _ = task.epochs  # asked for now: nobody wants to hear of it after the data were made
        check_folder(task.output)
        plan = task.check()
        say(f"{plan}\n")
        written = {*write_plan(task.output, plan), _record(task, task.epochs)}
        history = task.fit(_handlers(task, options), task.output if options.resume else None)
        if not history.epochs:
            print("interrupted before the first epoch")
            return 130
        say(f"\nafter epoch {history.epochs}\n{history.summary()}\n")
        written |= {*write_results(task.output, history, task.estimator.net), _record(task, history.epochs)}
        interrupted = task.estimator.state.interrupted
        if not interrupted:
            written |= {*write_pictures(task.output, history, task.pictures)}
        written |= {name for name in (LOG, CHECKPOINTS) if (task.output / name).exists()}
    ended = f"interrupted in epoch {history.epochs}" if interrupted else f"{history.epochs} epochs"
    print(f"{ended}; wrote {task.output}: {', '.join(sorted(written))}")
    return 130 if interrupted else 0


def _handlers(task: Run, options: argparse.Namespace) -> list[Any]:
    quiet = [ProgressBar(enabled=False)] if options.quiet else []
    checkpoints = CheckpointHandler(task.output, options.checkpoint_every, seed=task.seed)
    return [checkpoints, LogFile(task.output / LOG), *quiet]


def _record(task: Run, epochs: int) -> str:
    devices = [str(context) for context in task.estimator.context]
    return write_record(
        task.output, task.task.path, task.task.settings, seed=task.seed, epochs=epochs, devices=devices
    )


def _rhythm(text: str) -> Every:
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(number) :].strip() or "epochs"
    if not number.strip().isdigit() or int(number) < 1 or unit not in UNITS:
        raise argparse.ArgumentTypeError(f'"{text}" is no rhythm; valid are such as 1epochs and 500batches')
    return Every(int(number), UNITS[unit])


def _nothing(text: str) -> None:
    pass
