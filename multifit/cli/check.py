"""``multifit check FILE``: does everything fit? Nothing is trained."""

import argparse

from .common import add_task_arguments, print_result, quiet
from .task import Choices, Task


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add_task_arguments(parser)
    parser.add_argument(
        "--layers", action="store_true", help="also list the net's layers, their outputs and parameters"
    )


def run(options: argparse.Namespace) -> None:
    """Build what the file declares, run one batch through it and print the plan."""
    with quiet(options.quiet):
        plan = Task(Choices(options)).check(options.layers)
    if not options.quiet:
        print_result(str(plan))
