"""``multifit export FILE --from DIR``: a trained net as files that other programs read."""

import argparse
from collections.abc import Mapping

from ..engines import FORMATS
from ..estimator.run_folder import EXPORT
from .common import add_trained_arguments, quiet
from .task import trained_run
from .taskfile import as_usage_error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add_trained_arguments(parser)
    parser.add_argument(
        "--format",
        choices=list(FORMATS),
        help="gluon: symbol and parameters for SymbolBlock.imports; onnx: one file (needs onnx); "
        "torch: a module and its parameters, pt2: a program of torch.export (both need torch); default: "
        "gluon or torch, as the net is",
    )
    parser.add_argument(
        "--output", metavar="DIR", help="folder for the files (default: export in the folder of the run)"
    )


def run(options: argparse.Namespace) -> None:
    """Load the trained parameters, trace the net on the first batch of its data, and write it."""
    options.output = options.output or options.folder / EXPORT
    with quiet(options.quiet):
        task = trained_run(options)
        train_data, val_data = task.data
        data = train_data if val_data is None else val_data
        if isinstance(data, Mapping):  # a loader for each task, whose batches lack the other tasks' labels
            task.check()
            data = None
        with as_usage_error(ImportError):
            paths = task.estimator.export(task.output, data, format=options.format)
    print(f"wrote {task.shown_output}: {', '.join(path.name for path in paths)}")
