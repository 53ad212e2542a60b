"""``multifit profile FILE``: where the time of a training step goes."""

import argparse
import json
from dataclasses import asdict

from ..utils.files import atomic_write
from .common import add_task_arguments, count, print_result, quiet
from .task import Choices, Task


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add_task_arguments(parser)
    parser.add_argument(
        "--batches", type=count, default=50, help="number of steps of each measurement (default: 50)"
    )
    parser.add_argument("--output", metavar="DIR", help="also write the profile as JSON into this folder")


def run(options: argparse.Namespace) -> None:
    """Build what the file declares, profile it on the training data, and print the profile."""
    with quiet(options.quiet):
        task = Task(Choices(options))
        profile = task.estimator.profile(task.data[0], options.batches)
    print_result(str(profile))
    if options.output is not None:
        atomic_write(task.output / "profile.json", json.dumps(asdict(profile), indent=1) + "\n")
        print(f"wrote {task.shown_output / 'profile.json'}")
