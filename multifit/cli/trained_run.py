"""A run that was trained before: its settings and parameters come from its folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import reason
from ..estimator import MultiEstimator
from ..gluon.saved_net import load_net
from ..history import History
from ..taskfile import UsageError
from .record import read_record
from .results import HISTORY, PARAMETERS
from .run import Run


def trained_run(options: argparse.Namespace) -> Run:
    """Return a task file with the settings, seed, parameters and history of a trained run.

    Settings, seed and precision of the command line replace the run's. Raises UsageError as `Run` and
    `read_record` do, or, when they are first needed, if the parameters or the history cannot be read.
    """
    folder, file = options.folder, Path(options.file)

    def estimator(net: Any, spec: Any, context: Any, precision: str) -> MultiEstimator:
        path = folder / PARAMETERS
        try:
            load_net(net, path, context)
        except ValueError as error:
            raise UsageError(f"{path} does not fit the net of {file}: {error}") from None
        return MultiEstimator(net, spec, context=context, precision=precision)

    def history() -> History:
        try:
            return History.from_json(folder / HISTORY)
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read {folder / HISTORY}: {reason(error)}") from None

    return Run(options, read_record(folder, file), {"estimator": estimator, "history": history})
