"""A run that was trained before: its settings and parameters come from its folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..estimator import MultiEstimator
from ..history import History
from ..taskfile import UsageError
from .record import read_record
from .run import Run


def trained_run(options: argparse.Namespace) -> Run:
    """Return a task file with the settings, seed, parameters and history of a trained run.

    Settings, seed and precision of the command line replace the run's. Raises UsageError as `Run` and
    `read_record` do; parameters that do not fit the net are found when they are first needed.
    """
    folder, file = options.folder, Path(options.file)

    def estimator(net: Any, spec: Any, context: Any, precision: str) -> MultiEstimator:
        _load(net, folder / "final.params", context, file)
        return MultiEstimator(net, spec, context=context, precision=precision)

    def history() -> History:
        return History.from_json(folder / "history.json")

    return Run(options, read_record(folder, file), {"estimator": estimator, "history": history})


def _load(net: Any, path: Path, context: Any, file: Path) -> None:
    try:
        net.load_parameters(str(path), ctx=context)
    # Gluon asserts where names or shapes differ, and its C++ part raises where there is no such file
    except (AssertionError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UsageError(f"{path} does not fit the net of {file}: {reason}") from None
