"""Builds what a task file declares: net, estimator and data, each when it is first needed."""

import argparse
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..distributed import ALONE, World
from ..engines import AUTO, choose_engine, engine_module, library_of, precision_name
from ..estimator import MultiEstimator
from ..estimator.run_folder import HISTORY, PARAMETERS, RunRecord, read_record, run_plots
from ..handlers.checked_handlers import checked_handlers
from ..handlers.history import History
from ..spec.checks.data import one_shot
from ..spec.combine import restricted
from ..spec.plan import Plan
from ..spec.terms import task_slots
from ..utils.arguments import Count, checked_value
from ..utils.seeding import mixed, seed_everything
from ..utils.text import reason
from .common import NO
from .taskfile import Resolver, TaskFile, UsageError, as_usage_error

WANTED = "pictures() must return a dict of matplotlib figures by file name"
FUNCTION = 3  # a stream of random numbers besides those of gluon/
Functions = Mapping[str, Callable[..., Any]]


def output_folder(options: argparse.Namespace) -> Path:
    """Return the folder for results: the command line's, else ``runs/<name of the file>``, ``…-<task>``."""
    only = "".join(f"-{task}" for task in getattr(options, "only", None) or ()).replace("/", "-")
    return Path(getattr(options, "output", None) or Path("runs") / f"{Path(options.file).stem}{only}")


class Choices:
    """What the command line, an earlier run and the task file decide together; nothing is built yet.

    Where the command line says nothing, the `record` of an earlier run counts, then the file. Devices, and
    how is computed there, are those of a run that is resumed (`resumes`), not those of one that is only read.
    Raises UsageError if the file, a setting, the precision or the seed cannot be used.
    """

    def __init__(
        self, options: argparse.Namespace, record: RunRecord | None = None, resumes: bool = False
    ) -> None:
        self.arguments: list[str] = getattr(options, "arguments", [])  # of predict
        self.only: list[str] = getattr(options, "only", None) or (record.only if record else [])  # tasks
        self.shown_output = output_folder(options)  # as it is printed
        self.output = self.shown_output.absolute()  # the file may change the working directory
        # the file's own seed is not known before it is executed
        self.file_seed = _seeded(
            options.seed if options.seed is not None else (record and record.file_seed) or 0
        )
        self.file = TaskFile(options.file)
        self.file.set(f"{name}={text}" for name, text in (record.settings if record else {}).items())
        restored = self.file.settings
        self.file.set(options.settings)

        def chosen(name: str, otherwise: Any) -> Any:
            """Return what the command line chooses, then the earlier run, then the file."""
            given = getattr(options, name, None)
            if given is not None:
                if name in restored:  # the file's functions may use it
                    self.file.set([f"{name}={given}"])
                return given
            of_file = self.file.settings.get(name)
            if record is not None and of_file == restored.get(name):
                return getattr(record, name)
            return otherwise if of_file is None else of_file

        self.epochs: Any = chosen("epochs", None)
        with as_usage_error(ValueError):
            self.precision = precision_name(chosen("precision", "float32"))
            self.seed = _seeded(checked_value(f"seed of {self.file.path}", chosen("seed", 0), int))
        self.kept = {  # the earlier run's settings, although the file has others by now
            name: value
            for name, value in self.file.settings.items()
            if value == restored[name] != self.file.defaults[name] and record is not None
        }
        resumed = record if resumes else None
        self.engine: str = options.engine or (record.engine if record else AUTO)
        self.devices: str | None = options.devices or (resumed.devices if resumed else None)
        self.compile: bool | str = (
            AUTO if options.compile is None else options.compile != NO and options.compile
        )
        if resumed and options.compile is options.engine is None:
            self.compile = resumed.compile
        self.deterministic: bool = options.deterministic or (resumed is not None and resumed.deterministic)

    def context(self, library: str) -> Any:
        """Return where the parameters of a library's net are.

        The process is deterministic from here on, if that was chosen. Raises UsageError if the devices or the
        engine cannot be used.
        """
        try:
            module = engine_module(choose_engine(self.engine, self.devices, library=library), library)
            context = module.host(self.devices)
        except (ImportError, ValueError) as error:
            place = f"--devices {self.devices}: " if self.devices else ""
            raise UsageError(f"{place}{error}") from None
        if self.deterministic:
            module.be_deterministic()
        return context


def _seeded(seed: int) -> int:
    """Seed all generators, and return the seed; raises UsageError if it cannot be one."""
    with as_usage_error(ValueError):
        seed_everything(seed)
    return seed


class Task:
    """A task file, ready to build what it declares as was chosen.

    `functions` replace the functions ``estimator`` and ``history``, which otherwise make the estimator and
    train it. `world` has the processes that train together. Before each function is called, all generators
    are seeded by the run's seed and the function's name: a function draws the same numbers in every command,
    no matter which other functions the command calls, and in which order.
    """

    def __init__(self, choices: Choices, functions: Functions | None = None, world: World = ALONE) -> None:
        self.choices, self.file, self._world = choices, choices.file, world
        self.output, self.shown_output = choices.output, choices.shown_output
        self._handlers: list[Any] = []
        self._resume: Path | None = None
        by_net = not self.file.needs("net", "context")
        self.results = Resolver(
            {
                "context": self._context_of_net if by_net else self._context_of_file,
                **({"outputs": _predict} if "inputs" in self.file.functions else {}),
                **self.file.functions,
                **(functions or {"estimator": self.make_estimator, "history": self._train}),
            },
            {
                **self.file.settings,
                "arguments": choices.arguments,
                "output": choices.output,
                "precision": choices.precision,
                "seed": choices.seed,
                "trainers": None,
                "initializer": None,
                "frozen": (),
                "balance": None,
                "sampling": None,
                "handlers": None,
                "world": world,
            },
            self.file.path,
            self._seed,
        )

    @property
    def epochs(self) -> int:
        """How long to train; raises UsageError if nothing says it."""
        epochs = self.choices.epochs
        if epochs is None:
            raise UsageError(f"how long to train? Give --epochs, or write epochs = 20 in {self.file.path}")
        return int(checked_value(f"epochs of {self.file.path}", epochs, Count))

    @property
    def estimator(self) -> MultiEstimator:
        """The estimator of the file's net, spec and trainers."""
        estimator: MultiEstimator = self.results["estimator"]
        return estimator

    @property
    def data(self) -> tuple[Any, Any]:
        """The training data, and the validation data or None: of dicts, only the loaders of chosen tasks."""
        return self._pair(self.results["data"])

    @property
    def sampling(self) -> Any:
        """How loaders take turns; None if only one is chosen."""
        train = self.data[0] if self.choices.only else None
        return None if isinstance(train, Mapping) and len(train) == 1 else self.results["sampling"]

    @property
    def handlers(self) -> list[Any]:
        """The event handlers of the file; raises UsageError if ``handlers`` returned anything else."""
        with as_usage_error(ValueError):
            return checked_handlers(self.results["handlers"], f"handlers() of {self.file.path}")

    def make_estimator(
        self,
        net: Any,
        spec: Any,
        trainers: Any = None,
        initializer: Any = None,
        frozen: Any = (),
        balance: Any = None,
    ) -> MultiEstimator:
        """Make an estimator on the chosen engine and devices, of the chosen tasks; these are not balanced."""
        chosen = self.choices
        self.results["context"]  # raises UsageError for the devices
        if chosen.only:
            spec = restricted(spec, chosen.only, getattr(balance, "groups", None))
            balance = None
        how: dict[str, Any] = {"frozen": frozen, "balance": balance, "world": self._world}
        how |= {"engine": chosen.engine, "compile": chosen.compile, "precision": chosen.precision}
        return MultiEstimator(net, spec, trainers, chosen.devices, initializer, **how)

    def check(self, layers: bool = False) -> Plan:
        """Check everything on a batch and return the plan."""
        return self.estimator.check(*self.data, sampling=self.sampling, layers=layers)

    def fit(self, handlers: list[Any], resume: Path | None = None) -> History:
        """Train with these event handlers, resuming from a run's folder if one is given."""
        self._handlers, self._resume = handlers, resume
        history: History = self.results["history"]
        return history

    def pictures(self) -> Mapping[str, Any]:
        """Return what the file's ``pictures`` drew, figures by name; {} if it has no such function.

        Raises UsageError for anything else.
        """
        drawn = self.results["pictures"] if "pictures" in self.file.functions else {}
        if not isinstance(drawn, Mapping):
            raise UsageError(f"{WANTED}, not {drawn!r}")
        for name, figure in drawn.items():
            if not (isinstance(name, str) and Path(name).name == name and hasattr(figure, "savefig")):
                raise UsageError(f"{WANTED}; {name!r}: {figure!r} is not one, or its name has a folder")
        return drawn

    def plots(self) -> Mapping[str, Any]:
        """Return what the net confuses in the validation data, figures by name."""
        return run_plots(self.estimator, self.data[1])

    def _context_of_net(self, net: Any) -> Any:
        return self.choices.context(library_of(net))

    def _context_of_file(self) -> Any:
        """Return the context, which the net needs, by what the file imports."""
        return self.choices.context(self.file.library)

    def _seed(self, name: str) -> None:
        """Seed the generators for a function of the file, or of multifit."""
        seed = self.choices.seed
        if name in self.file.functions:
            seed = mixed(seed, FUNCTION, int.from_bytes(name.encode(), "big"))
        seed_everything(seed)

    def _pair(self, data: Any) -> tuple[Any, Any]:
        """Return training and validation data.

        Raises UsageError for a tuple that is not a pair, and for a loader that can be read only once, as the
        check reads from it before the training does.
        """
        path, pair = self.file.path, data if isinstance(data, tuple) else (data, None)
        if len(pair) != 2:
            raise UsageError(
                f"data() of {path} must return (train_data, val_data) or train_data, "
                f"not a tuple of {len(pair)}"
            )
        if any(one_shot(loader) for loader in pair):
            raise UsageError(
                f"data() of {path} must return loaders that can be read again, such as a DataLoader or a list"
            )
        return tuple(map(self._chosen, pair)) if self.choices.only else pair

    def _chosen(self, data: Any) -> Any:
        """Return a dict of loaders without those that have no label of a chosen task."""
        if not isinstance(data, Mapping):
            return data
        spec = self.estimator.spec
        labels = {ref.name for taker in (*spec.takers, *spec.evaluation.takers) for ref in taker.labels}
        chosen = dict(data)
        for name in task_slots(self.results["spec"]).keys() - task_slots(spec).keys():
            chosen.pop(name, None)  # the loader of a task that is left out
        for name, loader in list(chosen.items()):
            batch = next(iter(loader), None)
            if isinstance(batch, Mapping) and labels.isdisjoint(batch):
                del chosen[name]
        return chosen

    def _train(self, estimator: MultiEstimator, data: Any, sampling: Any, handlers: Any) -> History:
        """Train; `handlers` are among those of the fit, and here so that they cannot need the history."""
        how = {"event_handlers": self._handlers, "resume": self._resume, "sampling": self.sampling}
        return estimator.fit(*self._pair(data), epochs=self.epochs, seed=self.choices.seed, **how)


def trained_run(options: argparse.Namespace) -> Task:
    """Return a task file with the settings, seed, parameters and history of a trained run.

    Settings, seed and precision of the command line replace the run's. Raises UsageError as `Choices` and
    `read_record` do; if the parameters or the history cannot be read, it is raised when they are first
    needed.
    """
    folder, shown_folder = options.folder.absolute(), options.folder

    def estimator(net: Any, spec: Any, balance: Any) -> MultiEstimator:
        if not any((folder / name).exists() for name in PARAMETERS):
            resume = ["multifit", "train", options.file, "--output", str(shown_folder), "--resume"]
            raise UsageError(
                f"{shown_folder} has no {' or '.join(PARAMETERS)}: its run has not finished; "
                f"{shlex.join(resume)} continues it"
            )
        estimator = task.make_estimator(net, spec, balance=balance if task.choices.only else None)
        with as_usage_error(ValueError):
            estimator.load(folder)
        return estimator

    def history() -> History:
        try:
            return History.from_json(folder / HISTORY)
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read {shown_folder / HISTORY}: {reason(error)}") from None

    with as_usage_error(ValueError):
        record = read_record(shown_folder, options.file)
    task = Task(Choices(options, record), {"estimator": estimator, "history": history})
    return task


def _predict(estimator: MultiEstimator, inputs: Any) -> dict[str, Any]:
    return estimator.predict(inputs)
