"""``multifit export FILE --from DIR``: a trained net as files that other programs read."""

from __future__ import annotations

import argparse

from ..gluon.export.export import FORMATS
from ..taskfile import UsageError
from .finished import FinishedRun, add_finished_arguments
from .results import check_folder
from .run import hushed

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "export"
HELP = "write a trained net for use elsewhere, with the spec's names for its inputs and outputs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what this command takes."""
    add_finished_arguments(parser)
    parser.add_argument(
        "--format",
        choices=list(FORMATS),
        default="gluon",
        help="gluon: symbol and parameters for SymbolBlock.imports; onnx: one file (needs multifit[onnx])",
    )
    parser.add_argument(
        "--output", metavar="DIR", help="where the files go (default: export in the folder of the run)"
    )


def run(options: argparse.Namespace) -> None:
    """Load what was trained, look at the first batch of its data, and write the net."""
    with hushed(options.quiet):
        options.output = options.output or options.folder / "export"
        task = FinishedRun(options)
        check_folder(task.output)
        train_data, val_data = task.data
        try:
            written = task.estimator.export(
                task.output, train_data if val_data is None else val_data, format=options.format
            )
        except ImportError as error:
            raise UsageError(str(error)) from None
    print(f"wrote {task.output}: {', '.join(path.name for path in written)}")
