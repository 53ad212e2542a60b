"""``multifit profile FILE``: where the time of a training step goes."""

from __future__ import annotations

import argparse

from ..errors import counted
from .arguments import add_task_arguments, count, quiet
from .outputs import make_folder
from .results import write_profile
from .task import Task


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add_task_arguments(parser)
    parser.add_argument(
        "--batches", type=count, default=50, help="number of steps of each measurement (default: 50)"
    )
    parser.add_argument(
        "--output", metavar="DIR", help="folder for results (default: runs/<name of the file>)"
    )


def run(options: argparse.Namespace) -> None:
    """Build what the file declares, profile it on the training data, and print and write the profile."""
    with quiet(options.quiet):
        task = Task(options)
        make_folder(task.output)
        profile = task.estimator.profile(task.data[0], options.batches)
        names = write_profile(task.output, profile)
    if not options.quiet:
        print(f"{profile}\n")
    batches = counted(profile.batches, "batch", "batches")
    print(f"profiled {batches}; wrote {task.shown_output}: {', '.join(sorted(names))}")
