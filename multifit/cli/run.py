"""What a task file is built into: net, estimator, data, each made when it is first asked for."""

from __future__ import annotations

import argparse
import logging
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator

from ..estimator import MultiEstimator, get_logger
from ..gluon.data.device_names import parse_devices
from ..gluon.data.devices import resolve_context
from ..gluon.data.seeding import seed_everything
from ..gluon.precision.precision import named_precision
from ..plan import Plan
from ..taskfile import Resolver, TaskFile, UsageError

__all__ = ["Run", "add_task_arguments", "hushed"]


def add_task_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that every command on a task file takes."""
    parser.add_argument("file", help="task file: a Python module with the functions net, spec and data")
    parser.add_argument("--devices", metavar="2|cpu:2|gpu:0,1", help="a number of CPUs, or the GPUs to use")
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        nargs="+",
        action="extend",
        default=[],
        dest="settings",
        help="new values for the settings of the file",
    )
    parser.add_argument(
        "--precision",
        metavar="NAME",
        help="precision of the net's computations: float32 or bfloat16 (CPUs only); default: the file's "
        "precision, else float32",
    )
    parser.add_argument("--seed", type=int, help="for all random sources (default: the file's seed, else 0)")
    parser.add_argument("--quiet", action="store_true", help="print no more than what was written")


@contextmanager
def hushed(quiet: bool) -> Iterator[None]:
    """Keep what is logged on the console to warnings inside the block, where that is asked for."""
    consoles = {handler: handler.level for handler in get_logger().handlers} if quiet else {}
    for handler in consoles:
        handler.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for handler, level in consoles.items():
            handler.setLevel(level)


class Run:
    """One task file with its settings, seeded, ready to build.

    Parameters
    ----------
    options : argparse.Namespace
        What `add_task_arguments` reads, and perhaps ``epochs`` and ``output``.

    Attributes
    ----------
    task : TaskFile
        The file, its settings changed as asked.
    output : Path
        Where the results go; nothing is made there yet.
    precision : str
        In what the net computes.
    seed : int
        What all random sources were seeded with.

    Raises
    ------
    UsageError
        The file, a setting, the devices, the precision or the seed cannot be used.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.task = TaskFile(options.file)
        self._settle(options)
        self.output = self.output_of(options)
        self._epochs = getattr(options, "epochs", None)
        if (
            self._epochs is not None and "epochs" in self.task.settings
        ):  # the file may count on it, in a schedule
            self.task.set([f"epochs={self._epochs}"])
        self.precision = self._choose_precision(options.precision)
        self._handlers: list[Any] = []
        self._resume: Path | None = None
        self.seed = self._default_seed() if options.seed is None else options.seed
        context = _usable(parse_devices, options.devices) if options.devices else None
        _usable(seed_everything, self.seed)
        self._made = Resolver(
            {
                **({"outputs": _predict} if "inputs" in self.task.functions else {}),
                **self.task.functions,
                "estimator": self._make_estimator(context),
                "history": self._history,
            },
            {
                "arguments": list(getattr(options, "arguments", [])),
                "context": resolve_context(context, []),
                "output": self.output,
                "precision": self.precision,
                "seed": self.seed,
                "trainers": None,
                "initializer": None,
                "frozen": (),
            },
            self.task.path,
        )

    def output_of(self, options: argparse.Namespace) -> Path:
        """Return the folder for the results: what the command line says, else ``runs/<name of the file>``."""
        return Path(getattr(options, "output", None) or Path("runs") / self.task.path.stem)

    @property
    def epochs(self) -> int:
        """How long to train: what the command line says, else the file's setting ``epochs``.

        Raises
        ------
        UsageError
            Neither says it.
        """
        epochs = self.task.settings.get("epochs") if self._epochs is None else self._epochs
        if epochs is None:
            raise UsageError(f"how long to train? Give --epochs, or write epochs = 20 in {self.task.path}")
        return int(epochs)

    @property
    def estimator(self) -> MultiEstimator:
        """The estimator of the file's net, spec and trainers."""
        made: MultiEstimator = self._made["estimator"]
        return made

    @property
    def data(self) -> tuple[Any, Any]:
        """The training data and the validation data or None.

        Raises
        ------
        UsageError
            The file's ``data`` returned a tuple that is not of these two.
        """
        return _pair(self._made["data"], self.task.path)

    def check(self) -> Plan:
        """Check everything on a batch and return the plan."""
        return self.estimator.check(*self.data)

    def fit(self, handlers: list[Any], resume: Path | None = None) -> Any:
        """Train with these event handlers, from a run's folder on where one is given; return the history."""
        self._handlers, self._resume = handlers, resume
        return self._made["history"]

    def pictures(self) -> Any:
        """Return what the file's ``pictures`` drew, figures by name; nothing where it has none."""
        return self._made["pictures"] if "pictures" in self.task.functions else {}

    def _settle(self, options: argparse.Namespace) -> None:
        self.task.set(options.settings)

    def _default_seed(self) -> int:
        seed: int = self.task.settings.get("seed", 0)
        return seed

    def _choose_precision(self, given: str | None) -> str:
        if given is not None and "precision" in self.task.settings:  # the file may count on it
            self.task.set([f"precision={given}"])
        found = self.task.settings.get("precision", self._default_precision()) if given is None else given
        precision: str = _usable(named_precision, found).name
        return precision

    def _default_precision(self) -> str:
        return "float32"

    def _make_estimator(self, context: Any) -> Callable[..., MultiEstimator]:
        def estimator(net: Any, spec: Any, trainers: Any, initializer: Any, frozen: Any) -> MultiEstimator:
            return MultiEstimator(net, spec, trainers, context, initializer, frozen, self.precision)

        return estimator

    def _history(self) -> Any:
        return self.estimator.fit(
            *self.data, epochs=self.epochs, event_handlers=self._handlers, resume=self._resume
        )


def _predict(estimator: MultiEstimator, inputs: Any) -> dict[str, Any]:
    return estimator.predict(inputs)


def _pair(data: Any, path: Path) -> tuple[Any, Any]:
    if not isinstance(data, tuple):
        return data, None
    if len(data) != 2:
        raise UsageError(
            f"data() of {path} must return (train_data, val_data) or train_data, not a tuple of {len(data)}"
        )
    return data[0], data[1]


def _usable(function: Callable[[Any], Any], argument: Any) -> Any:
    try:
        return function(argument)
    except ValueError as error:
        raise UsageError(str(error)) from None
