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
    """Predict with an exported net, or with a run of a task file."""
    # The one works where mxnet cannot be imported, the other where torch cannot
    name = ".predict_export" if _is_exported(Path(options.file)) else ".predict_run"
    import_module(name, __package__).run(options)


def _is_exported(path: Path) -> bool:
    """Whether a path is that of an exported net: a folder, a program, or a module.

    A task file may be called ``net.py`` too, but it has none of an exported module's files beside it.
    """
    beside = any(path.with_name(name).is_file() for name in ("net.pt", "export.json"))
    return path.is_dir() or path.suffix == ".pt2" or (path.name == "net.py" and beside)
