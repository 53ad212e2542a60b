"""``multifit predict FILE --from DIR INPUT …``: a trained net's predictions for images, texts or rows."""

import argparse
import inspect
from pathlib import Path
from typing import Any

from ..estimator.run_folder import PREDICTIONS, draw
from .common import add_trained_arguments, place_in, print_result, quiet
from .task import Task, trained_run
from .taskfile import UsageError

MAX_LENGTH = 60  # characters of an input that are printed before its prediction


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add_trained_arguments(parser)
    parser.add_argument(
        "arguments",
        metavar="INPUT",
        nargs="+",
        help="what the file's inputs() reads; after --, it may begin with a minus",
    )
    parser.add_argument(
        "--output", metavar="DIR", help="folder for drawings (default: predictions, in the folder of the run)"
    )


def run(options: argparse.Namespace) -> None:
    """Load the trained parameters, read the inputs, and print or draw the prediction for each."""
    options.output = options.output or options.folder / PREDICTIONS
    with quiet(options.quiet):
        task = trained_run(options)
        predictions = _predictions(task)
    if len(predictions) != len(options.arguments):
        raise UsageError(
            f"show() must return one text or figure for each input: {len(options.arguments)}, "
            f"not {len(predictions)}"
        )
    for number, (argument, prediction) in enumerate(zip(options.arguments, predictions), 1):
        if hasattr(prediction, "savefig"):
            name = f"{number}-{Path(argument).stem[:40]}.png"
            draw(prediction, task.output / name)
            prediction = task.shown_output / name
        shortened = argument if len(argument) <= MAX_LENGTH else argument[:MAX_LENGTH] + "..."
        print_result(f"{shortened}: {prediction}")


def _predictions(task: Task) -> list[Any]:
    """Return what the file's ``show`` returns, or without one the outputs as text, a line per sample."""
    if "inputs" not in task.file.functions:
        raise UsageError(
            f'{task.file.path} has no function "inputs": predicting needs inputs(arguments), '
            "which makes a batch from the command line's arguments"
        )
    _read_inputs(task)
    if "show" in task.file.functions:
        shown = task.results["show"]
        return [shown] if isinstance(shown, str) or hasattr(shown, "savefig") else list(shown)
    outputs = task.results["outputs"]
    samples = zip(*outputs.values())
    return [", ".join(f"{name} {value!s}" for name, value in zip(outputs, sample)) for sample in samples]


def _read_inputs(task: Task) -> None:
    """Call the file's ``inputs``; if that cannot read the arguments, raise UsageError with what it reads."""
    path = task.file.path
    try:
        task.results["inputs"]
    except UsageError:
        raise
    except ValueError as error:
        text = (inspect.getdoc(task.file.functions["inputs"]) or "").partition("\n\n")[0]
        reads = f"; about its inputs(): {' '.join(text.split())}" if text else ""
        raise UsageError(f"{path} cannot read INPUT: {error}{place_in(path, error)}{reads}") from error
