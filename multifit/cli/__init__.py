"""The command ``multifit``: one file per command. Here are the parser, ``--version`` and the exit status."""

import argparse
import platform
import shlex
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from importlib import import_module, metadata

from .. import __version__
from ..utils.errors import CLEAR
from ..utils.files import OF_DISK
from ..utils.text import shown
from .common import place_in, raised_by_multifit
from .taskfile import UsageError

__all__ = ["main"]

COMMANDS = {  # what a command needs, in an order that works: --set takes all after it; and what it does
    "new": ("file", "write a small task file to start from; it runs as it is"),
    "train": ("file", "train what a task file declares and write the results"),
    "check": ("file", "check that net, spec, data and trainers of a task file fit, and print the plan"),
    "evaluate": ("file --from DIR", "measure a trained run on the validation data of its task file"),
    "predict": (
        "file INPUT [INPUT ...] --from DIR",
        "predict with a trained run, for inputs that the task file reads",
    ),
    "report": (
        "RUN [RUN ...]",
        "write one HTML page with plan, curves, figures and pictures of one or more runs",
    ),
    "compare": (
        "RUN [RUN ...] --baseline RUN [RUN ...]",
        "compare runs with nets for single tasks: their figures, and the mean relative change Δm",
    ),
    "export": (
        "file --from DIR",
        "write a trained net for use elsewhere, with the spec's names for its inputs and outputs",
    ),
    "profile": ("file", "measure where the time of a training step goes, as a table; nothing is trained"),
    "tasks": (
        "file",
        "train a few batches and print which tasks' gradients pull together and which apart, and what helps; "
        "nothing is written",
    ),
}
OF_A_FILE = FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default with the process's arguments, and return the exit status.

    The status is 0 for success; 1 if the declarations, the data or the trainers do not fit, or if another
    process of the run failed; 2 if the command line or the task file cannot be used, or if a file cannot be
    read or written; 130 if Ctrl-C ended a training early. Ctrl-C at any other time passes through, and so
    does any other exception in the user's own code, with its traceback. Output that cannot be printed does
    not change the status of a command that writes files.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    # only the given command is imported: help works without mxnet
    name = next(iter(arguments), "")
    try:
        options = build_parser([name]).parse_args(arguments)
        options.command = shlex.join(["multifit", *arguments])
        return run_command(options)
    except UsageError as error:
        return print_error(str(error), 2)
    except CLEAR as error:
        return print_error(str(error), 1)
    except OSError as error:  # with the file in it, the message says more than a traceback
        if not (isinstance(error, OF_A_FILE) or error.filename is not None or error.errno in OF_DISK):
            raise
        place = place_in(getattr(options, "file", None), error)  # a report has none
        return print_error(f"{error}{place}", 2)
    except (ImportError, ValueError) as error:  # mxnet or another library is not installed, or a wrong value
        if not raised_by_multifit(error):
            raise
        return print_error(str(error), 2 if isinstance(error, ImportError) else 1)


def run_command(options: argparse.Namespace) -> int:
    """Run a command; raise UsageError if the task file exits: 0 would say that the command did its work."""
    try:
        return options.run(options) or 0
    except SystemExit as error:
        raise UsageError(
            f"{options.file} called sys.exit({'' if error.code is None else shown(error.code)}); "
            "to end a command, raise an exception that says why"
        ) from error


def build_parser(names: Collection[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """Return the parser for all commands; those with these names, by default all, get their arguments."""
    parser = argparse.ArgumentParser(prog="multifit", description="Train nets with several outputs.")
    parser.add_argument("--version", action="version", version=_version_line())
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, (needed, text) in COMMANDS.items():
        usage = f"multifit {name} {needed} [options]"
        command = commands.add_parser(name, help=text, description=text, usage=usage)
        if name in names:
            module = import_module(f".{name}", __name__)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser


def print_error(message: str, status: int) -> int:
    """Print a message to stderr and return the exit status."""
    print(f"multifit: {message}", file=sys.stderr)
    return status


def _version_line() -> str:
    """Return the versions, without importing mxnet or torch."""
    found = {"mxnet": "not installed", "torch": "not installed"}
    for package in ("mxnet", "mxnet-cu112", "mxnet-cu117", "torch"):
        with suppress(metadata.PackageNotFoundError):
            found[package.partition("-")[0]] = metadata.version(package)
    libraries = ", ".join(f"{name} {version}" for name, version in found.items())
    return f"multifit {__version__}, {libraries}, Python {platform.python_version()}"
