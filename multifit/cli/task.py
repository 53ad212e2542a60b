"""Builds what a task file declares: net, estimator and data, each when it is first needed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Callable, Mapping

from ..arguments import Count, checked_value
from ..distributed import ALONE, World
from ..engines import AUTO, choose_engine, engine_module
from ..errors import last_line, notes, reason
from ..estimator import MultiEstimator
from ..gluon.data.devices import resolve_context
from ..gluon.precision.precisions import named_precision
from ..gluon.saved_net import load_net
from ..gluon.snapshot.parameters import read_others
from ..history import History
from ..seeding import seed_everything
from ..spec.plan import Plan
from ..taskfile import Resolver, TaskFile, UsageError, as_usage_error
from .arguments import NO
from .data import explained, loaders
from .devices import choose_context, earlier_devices, earlier_engine
from .record import RECORD, RunRecord, read_record, resume_command
from .results import HISTORY, PARAMETERS
from .seeds import DEFAULT, Seeds, choose_file_seed

Functions = Mapping[str, Callable[..., Any]]


def output_folder(options: argparse.Namespace) -> Path:
    """Return the folder for results: what the command line says, else ``runs/<name of the file>``."""
    return Path(getattr(options, "output", None) or Path("runs") / Path(options.file).stem)


class Task:
    """A task file with its settings and seed, ready to build what it declares.

    Where the command line says nothing, the `record` of an earlier run is used. `functions` replace the
    functions ``estimator`` and ``history``, which otherwise make the estimator and train it. `world` has the
    processes that train together. Raises UsageError if the file, a setting, the devices, the precision or the
    seed cannot be used.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        record: RunRecord | None = None,
        functions: Functions | None = None,
        world: World = ALONE,
    ) -> None:
        self.shown_output = output_folder(options)  # as it is printed
        self.output = self.shown_output.absolute()  # the file may change the working directory
        self.file_seed = choose_file_seed(options, record)
        with as_usage_error(ValueError):
            seed_everything(DEFAULT if self.file_seed is None else self.file_seed)
        self.file = TaskFile(options.file)
        self.record = record
        self._world = world
        self._change_settings(options)
        self.precision = self._choose_precision(options.precision)
        self.seed = self._choose_seed(options.seed)
        host = self._choose_engine(options, goes_on=functions is None)
        with as_usage_error(ValueError):
            seed_everything(self.seed)
        self._handlers: list[Any] = []
        self._resume: Path | None = None
        self.results = Resolver(
            {
                **({"outputs": _predict} if "inputs" in self.file.functions else {}),
                **self.file.functions,
                **(functions or {"estimator": self._make_estimator, "history": self._train}),
            },
            {
                **self.file.values,
                "arguments": list(getattr(options, "arguments", [])),
                "context": resolve_context(host, []),
                "output": self.output,
                "precision": self.precision,
                "seed": self.seed,
                "trainers": None,
                "initializer": None,
                "frozen": (),
                "balance": None,
                "sampling": None,
                "world": world,
            },
            self.file.path,
            None if self.file_seed is None else Seeds(self.seed, self.file.functions),
        )

    @property
    def epochs(self) -> int:
        """How long to train: the command line's number, else the file's setting, else the earlier run's.

        Raises UsageError if none of them says how long.
        """
        earlier = None if self.record is None else self.record.epochs
        epochs = self.file.settings.get("epochs", earlier) if self._epochs is None else self._epochs
        if epochs is None:
            raise UsageError(f"how long to train? Give --epochs, or write epochs = 20 in {self.file.path}")
        return int(checked_value(f"epochs of {self.file.path}", epochs, Count))

    @property
    def kept(self) -> dict[str, Any]:
        """The earlier run's settings that are kept, although the file has other values by now."""
        return {
            name: value
            for name, value in self._restored.items()
            if value != self._of_file[name] and not self._is_changed(name)
        }

    @property
    def runs_with(self) -> dict[str, Any]:
        """The engine's arguments."""
        return {"engine": self.engine, "compile": self.compile}

    @property
    def devices(self) -> list[str]:
        """Where the estimator runs: MXNet's contexts, or a device by torch's name."""
        return [self.context] if isinstance(self.context, str) else [str(c) for c in self.estimator.context]

    @property
    def estimator(self) -> MultiEstimator:
        """The estimator of the file's net, spec and trainers."""
        estimator: MultiEstimator = self.results["estimator"]
        return estimator

    @property
    def data(self) -> tuple[Any, Any]:
        """The training data, and the validation data or None."""
        return loaders(self.results["data"], self.file.path)

    def check(self) -> Plan:
        """Check everything on a batch and return the plan."""
        # In this order, as in older versions, which drew all random numbers from one stream.
        estimator, data = self.estimator, self.data
        with explained(self.results["data"], self.file.path):
            return estimator.check(*data, sampling=self.results["sampling"])

    def fit(self, handlers: list[Any], resume: Path | None = None) -> History:
        """Train with these event handlers, resuming from a run's folder if one is given."""
        self._handlers, self._resume = handlers, resume
        history: History = self.results["history"]
        return history

    def pictures(self) -> Any:
        """Return what the file's ``pictures`` drew, figures by name; {} if it has no such function."""
        return self.results["pictures"] if "pictures" in self.file.functions else {}

    def _change_settings(self, options: argparse.Namespace) -> None:
        self._of_file = self._restored = self.file.settings
        if self.record is not None:
            folder = getattr(options, "folder", None) or output_folder(options)
            try:
                self.file.restore(self.record.settings)
            except UsageError as error:
                raise UsageError(
                    f"the run in {folder} has other settings than the file: {error}; "
                    f"change its {RECORD} or the file"
                ) from None
            self._restored = self.file.settings
        self.file.set(options.settings)
        self._epochs = getattr(options, "epochs", None)
        self._tell_file("epochs", self._epochs)

    def _choose_engine(self, options: argparse.Namespace, goes_on: bool) -> Any:
        """Set the engine, its context and how it computes; return the context of the net's own parameters.

        If the earlier run `goes_on`, its choices are the defaults.
        """
        record = self.record if goes_on else None
        self.engine = options.engine or earlier_engine(self.record)
        devices = options.devices or earlier_devices(record if self._world.alone else None, self.engine)
        named: dict[Any, bool | str] = {None: AUTO, NO: False}
        self.compile = named.get(options.compile, options.compile)
        self.context, host = choose_context(devices, self.engine, self.compile)
        name = choose_engine(self.engine, self.context)
        self.deterministic: bool = options.deterministic or (record is not None and record.deterministic)
        if self.deterministic:
            engine_module(name).be_deterministic()
        if record is not None and options.compile is None and options.engine in (None, record.engine):
            self.compile = record.compile if name == "torch" else AUTO
        return host

    def _tell_file(self, name: str, value: Any) -> None:
        """Set the file's setting of this name, which its functions may use, to the value of an option."""
        if value is not None and name in self.file.settings:
            self.file.restore({name: value})

    def _choose_precision(self, name: str | None) -> str:
        self._tell_file("precision", name)
        default = "float32" if self.record is None else self.record.precision
        name = self.file.settings.get("precision", default) if name is None else name
        with as_usage_error(ValueError):
            return named_precision(name).name

    def _choose_seed(self, seed: int | None) -> int:
        self._tell_file("seed", seed)
        if seed is None and self.record is not None and not self._is_changed("seed"):
            seed = self.record.seed
        seed = self.file.settings.get("seed", DEFAULT) if seed is None else seed
        with as_usage_error(ValueError):
            return int(checked_value(f"seed of {self.file.path}", seed, int))

    def _is_changed(self, name: str) -> bool:
        """Whether the command line has changed a setting of the file, or of the earlier run."""
        return self.file.settings.get(name) != self._restored.get(name)

    def _make_estimator(
        self, net: Any, spec: Any, trainers: Any, initializer: Any, frozen: Any, balance: Any
    ) -> MultiEstimator:
        how = self.context, initializer, frozen, self.precision
        return MultiEstimator(net, spec, trainers, *how, balance=balance, world=self._world, **self.runs_with)

    def _train(self, estimator: MultiEstimator, data: Any, sampling: Any) -> History:
        how = {"event_handlers": self._handlers, "resume": self._resume, "sampling": sampling}
        return estimator.fit(*loaders(data, self.file.path), epochs=self.epochs, **how)


def trained_run(options: argparse.Namespace) -> Task:
    """Return a task file with the settings, seed, parameters and history of a trained run.

    Settings, seed and precision of the command line replace the run's. Raises UsageError as `Task` and
    `read_record` do; if the parameters or the history cannot be read, it is raised when they are first
    needed.
    """
    folder, shown, file = options.folder.absolute(), options.folder, Path(options.file)

    def estimator(net: Any, spec: Any, context: Any) -> MultiEstimator:
        if not (folder / PARAMETERS).exists():
            resume = resume_command(file, shown)
            raise UsageError(f"{shown} has no {PARAMETERS}: its run has not finished; {resume} continues it")
        try:
            load_net(net, folder / PARAMETERS, context)
        except ValueError as error:
            raise UsageError(f"{shown / PARAMETERS} does not fit the net of {file}: {error}") from None
        return MultiEstimator(net, spec, context=task.context, precision=task.precision, **task.runs_with)

    def history() -> History:
        try:
            return History.from_json(folder / HISTORY)
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read {shown / HISTORY}: {reason(error)}") from None

    task = Task(options, read_record(shown, file), {"estimator": estimator, "history": history})
    return task


def restore_losses(folder: Path, estimator: MultiEstimator) -> None:
    """Load the parameters of the losses, if they have any, from a run's folder; raises UsageError."""
    try:
        read_others(folder, estimator.net, estimator.parameters)
    except ValueError as error:
        raise UsageError(f"losses of the task have parameters of their own: {error}") from None


def _predict(estimator: MultiEstimator, inputs: Any) -> dict[str, Any]:
    try:
        return estimator.predict(inputs)
    except Exception as error:
        if type(error).__name__ != "MXNetError":  # whose message says more than its traceback
            raise
        message = f"cannot predict for these inputs: {last_line(error)}"
        raise UsageError("; ".join([message, *notes(error)])) from None
