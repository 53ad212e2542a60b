"""A run that was trained before: its settings and parameters come from its folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Callable

from ..estimator import MultiEstimator
from ..history import History
from ..taskfile import UsageError
from .record import read_record
from .run import Run, add_task_arguments

__all__ = ["FinishedRun", "add_finished_arguments"]


def add_finished_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that every command on a finished run takes."""
    add_task_arguments(parser)
    parser.add_argument(
        "--from",
        metavar="DIR",
        required=True,
        type=Path,
        dest="folder",
        help="folder of the run that trained it, such as runs/digits",
    )


class FinishedRun(Run):
    """One task file with the settings, the seed, the parameters and the history of a finished run.

    Parameters
    ----------
    options : argparse.Namespace
        What `add_finished_arguments` reads; settings and a seed given there come before those of the run.

    Raises
    ------
    UsageError
        As `Run`, or the folder is not that of a run, or its settings or parameters do not fit the file.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._folder = options.folder
        self._record = read_record(self._folder)
        super().__init__(options)

    def shown(self) -> Any:
        """Return what the file's ``show`` says of the inputs on the command line; else the outputs as text.

        Raises
        ------
        UsageError
            The file has no ``inputs``.
        """
        if "inputs" not in self.task.functions:
            raise UsageError(
                f'{self.task.path} has no function "inputs": predicting needs inputs(arguments), '
                "which makes a batch of what the command line gives"
            )
        return self._made["show"] if "show" in self.task.functions else _plainly(self._made["outputs"])

    def _settle(self, options: argparse.Namespace) -> None:
        trained = Path(str(self._record.get("file", self.task.path)))
        if trained.name != self.task.path.name:
            raise UsageError(f"{self._folder} is a run of {trained}, not of {self.task.path}")
        self.task.restore(self._record["settings"])
        super()._settle(options)

    def _default_seed(self) -> int:
        seed: int = self._record["seed"]
        return seed

    def _default_precision(self) -> str:
        precision: str = self._record.get("precision", "float32")
        return precision

    def _history(self) -> History:
        return History.from_json(self._folder / "history.json")

    def _make_estimator(self, context: Any) -> Callable[..., MultiEstimator]:
        """Return what makes the estimator: without trainers, on a net that has learnt."""

        def estimator(net: Any, spec: Any) -> MultiEstimator:
            path = self._folder / "final.params"
            try:
                net.load_parameters(str(path), ctx=self._made["context"])
            # Gluon asserts where names or shapes differ, and its C++ part raises where there is no such file
            except (AssertionError, ValueError, RuntimeError) as error:
                reason = str(error).strip().split("\n")[0]
                raise UsageError(f"{path} does not fit the net of {self.task.path}: {reason}") from None
            return MultiEstimator(net, spec, context=context, precision=self.precision)

        return estimator


def _plainly(outputs: dict[str, Any]) -> list[str]:
    """Return one text for each sample: every output with its values."""
    samples = zip(*outputs.values())
    return [", ".join(f"{name} {value!s}" for name, value in zip(outputs, sample)) for sample in samples]
