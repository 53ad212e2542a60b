"""The command ``multifit``: one file per command. Here are the parser, ``--version`` and the exit status."""

from __future__ import annotations

import argparse
import platform
import shlex
import sys
from contextlib import suppress
from importlib import import_module, metadata
from typing import Collection, Sequence

from .. import __version__
from ..errors import CLEAR, suggest
from ..taskfile import UsageError
from .arguments import usage
from .origin import exit_of, is_about_a_file, missing_package, place_in, raised_by_multifit

__all__ = ["main"]

COMMANDS = {
    "new": "write a small task file to start from; it runs as it is",
    "train": "train what a task file declares and write the results",
    "check": "check that net, spec, data and trainers of a task file fit, and print the plan",
    "evaluate": "measure a trained run on the validation data of its task file",
    "predict": "predict with a trained run, or with an exported net, which works without mxnet",
    "report": "write one HTML page with plan, curves, figures and pictures of one or more runs",
    "export": "write a trained net for use elsewhere, with the spec's names for its inputs and outputs",
    "profile": "measure where the time of a training step goes, as a table and a picture; nothing is trained",
    "tasks": "train a few batches and print which tasks' gradients pull together and which apart; "
    "nothing is written",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default with the process's arguments, and return the exit status.

    The status is 0 for success; 1 if the declarations, the data or the trainers do not fit, or if another
    process of the run failed; 2 if the command line or the task file cannot be used, or if a file cannot be
    read or written; 130 if Ctrl-C ended a training early. Ctrl-C at any other time passes through, and so
    does any other exception in the user's own code, with its traceback. Output that cannot be printed does
    not change the status of a command that writes files.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments) == ["--version"]:  # works without mxnet, which the commands import
        print(_version_line())
        return 0
    try:
        options = _options(arguments)
        options.command = shlex.join(["multifit", *arguments])
        return _run(options)
    except UsageError as error:
        return print_error(str(error), 2)
    except OSError as error:
        if not (is_about_a_file(error) or raised_by_multifit(error)):
            raise
        return print_error(f"{error}{place_in(getattr(options, 'file', None), error)}", 2)
    except CLEAR as error:
        return print_error(str(error), 1)
    except (ImportError, ValueError) as error:  # mxnet or another library is not installed, or a wrong value
        if not raised_by_multifit(error):
            raise
        return print_error(str(error), 2 if isinstance(error, ImportError) else 1)


def _run(options: argparse.Namespace) -> int:
    try:
        return options.run(options) or 0
    except SystemExit as error:  # in the user's code; 0 would say that the command did its work
        raise UsageError(exit_of(getattr(options, "file", None), error)) from None
    except ModuleNotFoundError as error:
        missing = missing_package(getattr(options, "file", None), error)
        if missing:
            raise UsageError(missing) from None
        raise


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. Exits with status 2 if a command or an argument is unknown."""
    # only the given command is imported: help, and predicting with an exported net, work without mxnet
    command = next(iter(arguments), "")
    parser = build_parser([command])
    if command and command not in COMMANDS and not command.startswith("-"):
        near = suggest(command, COMMANDS)
        parser.error(f'there is no command "{command}"{near}; commands are {", ".join(COMMANDS)}')
    options, unknown = parser.parse_known_args(arguments)
    if unknown:  # argparse would show the usage of `multifit` alone
        valid = options.parser._option_string_actions
        named = " ".join(f"{each}{suggest(each.partition('=')[0], valid)}" for each in unknown)
        options.parser.error(f"unrecognized arguments: {named}")
    return options


def build_parser(names: Collection[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """Return the parser for all commands; those with these names, by default all, get their arguments."""
    parser = argparse.ArgumentParser(prog="multifit", description="Train Gluon nets with several outputs.")
    parser.add_argument("--version", action="version", version=_version_line())
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        if name not in names:
            continue
        module = import_module(f".{name}", __name__)
        module.add_arguments(command)
        command.usage = usage(command)
        command.set_defaults(run=module.run, parser=command)
    return parser


def print_error(message: str, status: int) -> int:
    """Print a message to stderr and return the exit status."""
    print(f"multifit: {message}", file=sys.stderr)
    return status


def _version_line() -> str:
    """Return the versions, without importing mxnet."""
    mxnet = "not installed"
    for package in ("mxnet", "mxnet-cu112", "mxnet-cu117"):
        with suppress(metadata.PackageNotFoundError):
            mxnet = metadata.version(package)
    return f"multifit {__version__}, mxnet {mxnet}, Python {platform.python_version()}"
