"""What several commands share: their arguments, what they print, and where an error came from."""

import argparse
import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..distributed.log_once import get_logger
from ..engines import AUTO, CUDA_GRAPHS, ENGINES
from ..utils.output import write_error
from .taskfile import UsageError

NO = "no"  # neither compiles nor captures


def count(text: str) -> int:
    """Return a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(text)


def assignment(text: str) -> str:
    """Return ``name=value`` as it is; anything else may be the file that `--set` would take for a value."""
    if "=" not in text:
        raise argparse.ArgumentTypeError(
            f'"{text}" is not NAME=VALUE; --set takes all that follows it: give files and inputs before it'
        )
    return text


def add_task_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of every command on a task file."""
    parser.add_argument("file", help="task file: a Python module with the functions net, spec and data")
    parser.add_argument(
        "--devices",
        metavar="2|cpu:2|gpu:0,1|cuda:0",
        help="a number of CPUs, the GPUs to use, or a PyTorch device; cuda: each process uses its own GPU",
    )
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        help="what runs the batches (default: as in the run that is resumed or read; else MXNet, or PyTorch "
        "on its devices, such as cuda:0)",
    )
    parser.add_argument(
        "--compile",
        nargs="?",
        const=True,
        choices=[AUTO, CUDA_GRAPHS, NO],
        help="with PyTorch: without a value, torch.compile compiles the net; cudagraphs: capture a step on a "
        "GPU however little memory is free; no: run it operator by operator (default: auto, capture it on a "
        "GPU if half of its memory is free)",
    )
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="compute the same bits every time, on GPUs too; PyTorch warns about operators that cannot",
    )
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        nargs="+",
        type=assignment,
        action="extend",
        default=[],
        dest="settings",
        help="new values for the settings of the file",
    )
    parser.add_argument(
        "--precision",
        metavar="NAME",
        help="precision of the net's computations: float32, bfloat16 (with MXNet, CPUs only) or float16 "
        "(PyTorch only); default: the file's precision, else float32",
    )
    parser.add_argument(
        "--seed", type=int, help="seeds all random generators (default: the file's seed, else 0)"
    )
    parser.add_argument("--quiet", action="store_true", help="print only results and what was written")


def add_trained_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of every command on a trained run."""
    add_task_arguments(parser)
    parser.add_argument(
        "--from",
        metavar="DIR",
        required=True,
        type=Path,
        dest="folder",
        help="folder of the training run, such as runs/digits",
    )


@contextmanager
def quiet(enabled: bool) -> Iterator[None]:
    """Show only warnings on the console inside the block, if `enabled`; log files get everything."""
    levels = {handler: handler.level for handler in get_logger().handlers} if enabled else {}
    for handler in levels:
        handler.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for handler, level in levels.items():
            handler.setLevel(level)


def print_result(text: str) -> None:
    """Print the result of a command; raise UsageError if that fails.

    What a command prints beside the files that it writes may get lost, but its result may not.
    """
    print(text, flush=True)
    lost = write_error(sys.stdout)
    if lost is not None:
        raise UsageError(f"cannot write the output: {lost}")


def place_in(file: object, error: BaseException) -> str:
    """Return the last line of the task file that led to an error, in words; "" if none did."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(file)]
    return f" ({file}, line {lines[-1]})" if lines else ""


def raised_by_multifit(error: BaseException) -> bool:
    """Return whether multifit itself raised, not the user's code or a library that it called."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals["__name__"]).partition(".")[0] == "multifit"
