"""The command ``multifit``: one file per command, and here what they share at the door."""

from __future__ import annotations

import argparse
import sys
from typing import Sequence

from ..errors import DataError, SpecError, TrainerError
from ..taskfile import UsageError
from . import check, evaluate, export, predict, profile, report, train

__all__ = ["main"]

COMMANDS = (train, check, evaluate, predict, report, export, profile)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        What follows the command's name; by default what the process was started with.

    Returns
    -------
    int
        0 for success; 1 where the declarations, the data or the trainers do not fit; 2 where the command line
        or the task file cannot be used, or a file is missing; 130 after Ctrl-C. Any other exception in the
        user's own code passes through with its traceback.
    """
    options = build_parser().parse_args(arguments)
    try:
        return options.run(options) or 0
    except UsageError as error:
        return _complain(str(error), 2)
    except FileNotFoundError as error:  # a missing input or data set: the path says more than a traceback
        return _complain(str(error), 2)
    except (SpecError, DataError, TrainerError) as error:
        return _complain(str(error), 1)
    except ValueError as error:
        if not _is_ours(error):
            raise
        return _complain(str(error), 1)
    except KeyboardInterrupt:
        return _complain("interrupted", 130)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(prog="multifit", description="Train Gluon nets with several outputs.")
    commands = parser.add_subparsers(required=True, metavar="command")
    for module in COMMANDS:
        command = commands.add_parser(module.NAME, help=module.HELP, description=module.HELP)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def _complain(message: str, code: int) -> int:
    print(f"multifit: {message}", file=sys.stderr)
    return code


def _is_ours(error: BaseException) -> bool:
    """Tell whether multifit itself raised, and not the user's code or a library that it called."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals["__name__"].split(".")[0] == "multifit"
