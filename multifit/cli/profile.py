"""``multifit profile FILE``: where the time of a training step goes."""

from __future__ import annotations

import argparse

from .results import check_folder, write_profile
from .run import Run, add_task_arguments, hushed

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "profile"
HELP = "measure where the time of a training step goes, as a table and a picture; nothing is trained"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what this command takes."""
    add_task_arguments(parser)
    parser.add_argument(
        "--batches", type=int, default=50, help="how many steps each measurement has (default: 50)"
    )
    parser.add_argument("--output", metavar="DIR", help="where results go (default: runs/<name of the file>)")


def run(options: argparse.Namespace) -> None:
    """Build what the file declares, profile it on the training data, print and write what was found."""
    with hushed(options.quiet):
        task = Run(options)
        check_folder(task.output)
        profile = task.estimator.profile(task.data[0], options.batches)
        if not options.quiet:
            print(f"{profile.summary()}\n")
        written = write_profile(task.output, profile)
    print(f"profiled {profile.batches} batches; wrote {task.output}: {', '.join(sorted(written))}")
