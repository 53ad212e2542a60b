"""``multifit new FILE``: a small task file to start from."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from ..taskfile import UsageError

HELP = "write a small task file to start from; it runs as it is"
TEMPLATE = Path(__file__).with_name("new_task.txt")  # a text file: mxnet is not imported in this folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("file", type=Path, help="where to write it, such as mytask.py; must not exist yet")


def run(options: argparse.Namespace) -> None:
    """Write the file; raise UsageError where it exists or cannot be written."""
    try:
        with options.file.open("x", encoding="utf-8") as file:
            file.write(TEMPLATE.read_text("utf-8"))
    except FileExistsError:
        raise UsageError(f"{options.file} exists already, and is not overwritten") from None
    except OSError as error:
        raise UsageError(f"cannot write {options.file}: {error.strerror}") from None
    print(f"wrote {options.file}; train it: {shlex.join(['multifit', 'train', str(options.file)])}")
