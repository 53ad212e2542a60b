"""``multifit check FILE``: does everything fit? Nothing is trained."""

import argparse

from .common import add_task_arguments, print_result, quiet
from .task import Choices, Task

add_arguments = add_task_arguments


def run(options: argparse.Namespace) -> None:
    """Build what the file declares, run one batch through it and print the plan."""
    with quiet(options.quiet):
        plan = Task(Choices(options)).check()
    if not options.quiet:
        print_result(str(plan))
