"""``multifit new FILE``: a small task file to start from."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path

from ..files import atomic_write
from ..taskfile import UsageError

TEMPLATE = Path(__file__).with_name("new_task.txt")  # a text file: mxnet is not imported in this folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("file", type=Path, help="where to write it, such as mytask.py; must not exist yet")


def run(options: argparse.Namespace) -> None:
    """Write the file; raise UsageError if it exists or cannot be written."""
    if os.path.lexists(options.file):
        raise UsageError(f"{options.file} exists already, and is not overwritten")
    try:
        options.file.parent.stat()  # a misspelt folder is not made
        atomic_write(options.file, TEMPLATE.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot write {options.file}: {error.strerror}") from None
    print(f"wrote {options.file}; train it: {shlex.join(['multifit', 'train', str(options.file)])}")
