"""``multifit predict FILE --from DIR INPUT …``: what a trained net says of images, texts or rows."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Iterator

from ..files import atomic_path
from ..taskfile import UsageError
from .finished import FinishedRun, add_finished_arguments
from .results import check_folder
from .run import hushed

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "predict"
LONG = 60  # characters of an input that are shown with the answer
HELP = "say what a trained run makes of inputs, as its task file reads and shows them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what this command takes."""
    add_finished_arguments(parser)
    parser.add_argument("arguments", metavar="INPUT", nargs="+", help="what the file's inputs() reads")
    parser.add_argument(
        "--output", metavar="DIR", help="where drawings go (default: predictions in the folder of the run)"
    )


def run(options: argparse.Namespace) -> None:
    """Load what was trained, read the inputs, and print or draw what the net says of each."""
    with hushed(options.quiet):
        options.output = options.output or options.folder / "predictions"
        task = FinishedRun(options)
        shown = task.shown()
    for line in _lines(options.arguments, shown, task.output):
        print(line)


def _lines(arguments: list[str], shown: Any, folder: Path) -> Iterator[str]:
    """Yield a line for each input: the text, or where the drawing went."""
    answers = [shown] if isinstance(shown, str) or hasattr(shown, "savefig") else list(shown)
    if len(answers) != len(arguments):
        raise UsageError(
            f"show() must return one text or figure for each input: {len(arguments)}, not {len(answers)}"
        )
    for number, (argument, answer) in enumerate(zip(arguments, answers), 1):
        if hasattr(answer, "savefig"):
            answer = _drawn(answer, folder, f"{number}-{Path(argument).stem[:40]}.png")
        yield f"{argument if len(argument) <= LONG else argument[:LONG] + '...'}: {answer}"


def _drawn(figure: Any, folder: Path, name: str) -> Path:
    check_folder(folder)
    with atomic_path(folder / name) as path:
        figure.savefig(path, dpi=130)
    return folder / name
