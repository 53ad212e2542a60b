"""``multifit predict FILE --from DIR INPUT …``: a trained net's predictions for images, texts or rows."""

from __future__ import annotations

import argparse
import re
from importlib import import_module
from pathlib import Path

from .arguments import add_trained_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add_trained_arguments(parser, required=False)
    parser._negative_number_matcher = re.compile(r"-\.?[0-9]")  # such as -0.5,0.2, which argparse refuses
    parser.add_argument(
        "arguments",
        metavar="INPUT",
        nargs="+",
        help="what the file's inputs() reads; for an exported net .npy or .npz files, each one a batch",
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        help="folder for drawings and arrays (default: predictions, beside the net)",
    )


def run(options: argparse.Namespace) -> None:
    """Predict with an exported net if the file is a folder or a program, else with a run of a task file."""
    exported = Path(options.file).is_dir() or options.file.endswith(".pt2")
    # The one works where mxnet cannot be imported, the other where torch cannot
    module = import_module(".predict_export" if exported else ".predict_run", __package__)
    module.run(options)
