"""``multifit train FILE``: plan, training, table of figures, and a folder of results."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ..checkpoints import CHECKPOINTS
from ..errors import counted
from ..handlers import CheckpointHandler, LogFile, ProgressBar, TensorBoardHandler
from ..triggers import Every
from .record import write_record
from .results import check_folder, write_pictures, write_plan, write_results
from .resumed import ResumedRun
from .run import Run, add_task_arguments, hushed

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "train"
HELP = "train what a task file declares and write the results"
LOG, EVENTS = "log.txt", "tensorboard"
UNITS = {"epoch": "epoch", "epochs": "epoch", "batch": "batch", "batches": "batch"}
UNITS_OF = {"epoch": "epochs", "batch": "batches"}


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
        every = _schedule(task, options.checkpoint_every)
        written = {*write_plan(task.output, plan), _record(task, task.epochs, every)}
        history = task.fit(_handlers(task, options.quiet, every), task.output if options.resume else None)
        say(f"\nafter epoch {history.epochs}\n{history.summary()}\n")
        written |= {
            *write_results(task.output, history, task.estimator.net),
            _record(task, task.epochs if task.estimator.state.interrupted else history.epochs, every),
        }
        interrupted = task.estimator.state.interrupted
        if not interrupted:
            written |= {*write_pictures(task.output, history, task.pictures)}
        written |= {name for name in (LOG, EVENTS, CHECKPOINTS) if (task.output / name).exists()}
    ended = f"interrupted in epoch {history.epochs}" if interrupted else counted(history.epochs, "epoch")
    print(f"{ended}; wrote {task.output}: {', '.join(sorted(written))}")
    return 130 if interrupted else 0


def _schedule(task: Run, given: Every | None) -> Every | None:
    """Return the schedule of checkpoints: a run that goes on keeps its own, which its seeding follows."""
    kept = task.every if isinstance(task, ResumedRun) else None
    if kept and given and (kept.n, kept.unit) != (given.n, given.unit):
        task.estimator.logger.warning(
            "the run was begun with checkpoints each %d %s: with another schedule it goes on correctly, but "
            "does not end bit for bit as without the stop",
            kept.n,
            UNITS_OF[kept.unit],
        )
    return given or kept


def _handlers(task: Run, quiet: bool, every: Every | None) -> list[Any]:
    bars = [ProgressBar(enabled=False)] if quiet else []
    checkpoints = CheckpointHandler(task.output, every, seed=task.seed)
    return [checkpoints, LogFile(task.output / LOG), *_events(task.output / EVENTS), *bars]


def _events(folder: Path) -> list[Any]:
    try:
        return [TensorBoardHandler(folder)]
    except ImportError as error:  # as without matplotlib: a run is not lost for what shows it
        print(f"multifit: no TensorBoard events: {error}", file=sys.stderr)
        return []


def _record(task: Run, epochs: int, every: Every | None) -> str:
    facts = {
        "seed": task.seed,
        "epochs": epochs,
        "devices": [str(context) for context in task.estimator.context],
        "precision": task.precision,
        "checkpoint_every": None if every is None else [every.n, every.unit],
    }
    return write_record(task.output, task.task.path, task.task.settings, **facts)


def _rhythm(text: str) -> Every:
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(number) :].strip() or "epochs"
    if not number.strip().isdigit() or int(number) < 1 or unit not in UNITS:
        raise argparse.ArgumentTypeError(f'"{text}" is no rhythm; valid are such as 1epochs and 500batches')
    return Every(int(number), UNITS[unit])


def _nothing(text: str) -> None:
    pass
