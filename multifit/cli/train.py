"""``multifit train FILE``: plan, training, table of figures, and a folder of results."""

from __future__ import annotations

import argparse

from ..handlers import ProgressBar
from .record import write_record
from .results import check_folder, write_pictures, write_results
from .run import Run, add_task_arguments, hushed

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "train"
HELP = "train what a task file declares and write the results"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what this command takes."""
    add_task_arguments(parser)
    parser.add_argument("--epochs", type=int, help="how long to train (default: the file's epochs)")
    parser.add_argument("--output", metavar="DIR", help="where results go (default: runs/<name of the file>)")


def run(options: argparse.Namespace) -> None:
    """Check, train, and write the history, the plan, the parameters and the pictures."""
    with hushed(options.quiet):
        task = Run(options)
        say = _nothing if options.quiet else print
        _ = task.epochs  # asked for now: nobody wants to hear of it after the data were made
        check_folder(task.output)
        plan = task.check()
        say(f"{plan}\n")
        history = task.fit([ProgressBar(enabled=False)] if options.quiet else [])
        say(f"\nafter epoch {history.epochs}\n{history.summary()}\n")
        written = write_results(task.output, plan, history, task.estimator.net)
        written.append(
            write_record(
                task.output,
                task.task.path,
                task.task.settings,
                seed=task.seed,
                epochs=history.epochs,
                devices=[str(context) for context in task.estimator.context],
            )
        )
        written += write_pictures(task.output, history, task.pictures)
    print(f"{history.epochs} epochs; wrote {task.output}: {', '.join(sorted(written))}")


def _nothing(text: str) -> None:
    pass
