"""Predict with a net that was exported to torch, batch by batch from files. Needs no mxnet."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import last_line, quoted
from ..taskfile import UsageError, as_usage_error
from .outputs import PREDICTIONS, print_results

INSTALL = "predicting with an exported net needs PyTorch: pip install torch"
FILES = ("net.py", "net.pt2")  # an exported net's folder has one of them
UNUSED: dict[str, Any] = {
    "compile": None,
    "deterministic": False,
    "engine": None,
    "folder": None,
    "precision": None,
    "seed": None,
    "settings": [],
}
OPTIONS = {"folder": "--from", "settings": "--set"}  # others are named as their attribute


def run(options: argparse.Namespace) -> None:
    """Write the outputs for each file, and print a line about each.

    Raises UsageError for options that an exported net does not take, and if the net or a file cannot be used;
    OSError if a file cannot be opened or written.
    """
    unused = [name for name, default in UNUSED.items() if getattr(options, name) != default]
    if unused:
        flags = quoted(OPTIONS.get(name, f"--{name}") for name in unused)
        raise UsageError(f"{options.file} is an exported net, whose settings are fixed: leave out {flags}")
    net = Path(options.file)
    folder = Path(options.output or (net if net.is_dir() else net.parent) / PREDICTIONS)
    if net.is_dir() and not any((net / name).is_file() for name in FILES):
        raise UsageError(
            f"{net} has no net exported to PyTorch ({quoted(FILES)}): "
            "multifit export FILE --from DIR --format torch writes one"
        )
    with as_usage_error(ValueError):
        print_results(_module().predict_files(net, options.arguments, folder, options.devices))


def _module() -> Any:
    try:
        return import_module("multifit.torch.export.predict")
    except ImportError as error:
        raise UsageError(f"{INSTALL}: {last_line(error)}") from error
