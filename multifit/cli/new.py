"""``multifit new FILE``: a small task file to start from."""

import argparse
import os
import shlex
from pathlib import Path

from ..utils.files import atomic_write
from .taskfile import UsageError

# text files, as this folder imports neither mxnet nor torch
TEMPLATES = {name: Path(__file__).with_name(f"{name}.txt") for name in ("new_task", "new_task_torch")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("file", help="where to write it, such as mytask.py; must not exist yet")
    parser.add_argument("--torch", action="store_true", help="with a net of PyTorch instead of MXNet")


def run(options: argparse.Namespace) -> None:
    """Write the file; raise UsageError if it exists, and OSError if it cannot be written."""
    file = Path(options.file)
    if os.path.lexists(file):
        raise UsageError(f"{file} exists already, and is not overwritten")
    file.parent.stat()  # a misspelt folder is not made
    atomic_write(file, TEMPLATES["new_task_torch" if options.torch else "new_task"].read_text("utf-8"))
    run = Path("runs", file.stem)
    print(f"wrote {file}; next:")
    for command in (
        ["train", file],
        ["evaluate", file, "--from", run],
        ["predict", file, "--from", run, "0.5,-0.2"],
        ["report", run],
    ):
        print("   ", shlex.join(["multifit", *map(str, command)]))
