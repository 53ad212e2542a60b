"""MultiEstimator: trains, evaluates and predicts with any net of PyTorch or Gluon, as its TaskSpec says."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from html import escape
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any

from ..balance import Balance
from ..checkpoints import best_checkpoint
from ..distributed import ALONE, World
from ..distributed.log_once import LogOnce, get_logger
from ..engines import (
    AUTO,
    CUDA_GRAPHS,
    ENGINES,
    FORMATS,
    Arrays,
    Engine,
    Setup,
    choose_engine,
    engine_module,
    library_of,
)
from ..handlers.checked_handlers import checked_handlers
from ..handlers.delta_m import DELTA_M
from ..handlers.dispatcher import TrainingHooks
from ..handlers.handler import EVALUATION_EVENTS, TRAINING_EVENTS
from ..handlers.history import History
from ..handlers.interpretation import Interpretation, comparisons
from ..handlers.state import RunState
from ..sampling import Sampling, TaskLoaders
from ..spec import TaskSpec, TrainerSpec
from ..spec.checks.data import batch_count
from ..spec.plan import Plan
from ..utils.arguments import (
    Count,
    FromZero,
    PathLike,
    Seed,
    Valid,
    checked,
    checked_value,
    one_of,
    with_known_arguments,
)
from ..utils.errors import raise_problems
from ..utils.files import check_folder
from ..utils.protocols import (
    Array,
    BatchResult,
    Context,
    Handler,
    Initializer,
    Loader,
    Loss,
    Net,
    Numbers,
    Parameter,
    Parameters,
    Trainer,
)
from ..utils.seeding import preserve_rng, seed_everything
from ..utils.stages import EVALUATE, PREFIXES, STAGE_OF_PREFIX, TRAIN, figure_name, split_figure, split_set
from ..utils.threads import oversubscription
from .batch_pass import run_pass
from .data import check_data, check_evaluated, each_loader, endless_problems, overfit_data, rank_problems
from .fit_loop import FitLoop
from .fit_setup import fit_events, set_seed, start_together
from .handler_runner import HandlerRunner
from .prediction_files import prediction_files
from .profiling import Profile, profile
from .rate_search import RateSearch, find_learning_rate
from .resume import RunCheckpointer
from .run import Calls, Run
from .run_folder import RunRecord, run_plots, writing_run
from .trained import find_trained

_Engine = Annotated[str, one_of(*ENGINES)]
_Compile = Annotated[
    bool | str,
    Valid(
        f'"{AUTO}", "{CUDA_GRAPHS}", True or False', lambda value: value in (AUTO, CUDA_GRAPHS, True, False)
    ),
]
_Activation = str | Callable[[Any], Any]
_World = Annotated[World, Valid("what multifit.connect() returns")]


@with_known_arguments
class MultiEstimator:
    """Trains, evaluates and predicts with a net, as its TaskSpec says.

    An estimator does one thing at a time: its methods raise RuntimeError while another thread uses it, and
    predictions wait for each other. `fit`, `check`, `find_learning_rate` and `profile` also raise it if a
    handler of a running fit calls them.

    Parameters
    ----------
    net : torch.nn.Module or Block
        Any PyTorch net, or any Gluon net, hybridized or not, initialised or not.
    spec : TaskSpec or loss
        Declares which outputs and labels the losses and metrics take. A loss alone is enough for a net with
        one input, one output and one label.
    trainers : TrainerSpec, torch.optim.Optimizer, gluon.Trainer or mapping of str to these, optional
        The trainers: which optimizer updates which parameters. Defaults to Adam with learning rate 0.001 for
        all parameters.
    context : Context, list of Context, str or torch.device, optional
        The devices to run on, also as text such as ``"gpu:0,1"``; with PyTorch one device, such as
        ``"cuda:0"``. Defaults to the devices of a Gluon net that is initialised, and to the GPU that a
        PyTorch net is on, else to the first GPU, else to the CPU.
    initializer : Initializer, str or mapping of pattern to Initializer, optional
        Initialises the parameters of a Gluon net that are not initialised yet. Of a mapping, the first
        pattern that matches a parameter's name is used.
    frozen : str, part of the net, parameters, or sequence of these
        Parameters that no trainer updates; strings are patterns of names. A BatchNorm layer whose scale and
        shift are among them, or whose running statistics are, normalises by its running statistics in
        training too, and leaves them as they are.
    precision : {"float32", "bfloat16", "float16"}
        The dtype in which the net computes, in training, evaluation and prediction. With PyTorch, this is
        autocast; "float16" needs a GPU, and scales the losses. With MXNet, "bfloat16" needs a hybridized net
        and a CPU with AVX512, and "float16" is refused. Parameters, gradients, losses and figures stay
        float32, and so does what `predict` returns and `export` writes.
    balance : method of multifit.balance, optional
        The method that weighs the tasks against each other in training. Its weights are multiplied by those
        of the losses. By default, the weights of the losses alone are used.
    accumulate : int
        The number of batches per update, of all trainers. An update is that of one batch of all their
        samples; batches that an epoch leaves over are an update of their own. For some of the trainers only,
        see :class:`TrainerSpec`.
    engine : {"auto", "mxnet", "torch"}
        What runs the batches of a Gluon net; a PyTorch net always runs with PyTorch. "torch" translates a
        Gluon net into a module, which PyTorch trains on a device such as ``context="cuda:0"`` or
        ``context="cpu"``; docs/leaving-mxnet.md says what differs and what is refused. "auto" chooses MXNet,
        unless `context` is PyTorch's name of a CUDA device, or a GPU that PyTorch can use and MXNet cannot.
    compile : {"auto", "cudagraphs", True, False}
        With PyTorch, how net, losses and their backward pass run. "auto" captures them on a GPU as CUDA
        graphs, for each form of batches that comes again, if half of the GPU's memory is free then;
        "cudagraphs" captures them however little is free, and warns if a capture fails. With True,
        `torch.compile` also compiles the net. This takes a minute or more, and pays off where the net is
        large and runs for long. With False, they run operator by operator.
    world : World, optional
        The processes that train together, from :func:`multifit.connect`. Each process takes its share of
        every batch, and the result is that of one process that trains on whole batches. All processes must
        make the same calls with the same data.

    Raises
    ------
    SpecError
        `spec` is neither a TaskSpec nor a loss, `net` is neither a Module nor a Block, or `balance` cannot
        weigh the losses.
    ValueError
        The `context` does not exist; the `precision` is unknown, or the devices do not support it; `world` is
        not from `connect`; `accumulate` is not a whole number of at least 1; the `engine` is unknown, or does
        not run the net; or `compile` needs PyTorch, and the engine is MXNet.
    ImportError
        The engine is not installed.
    """

    def __init__(
        self,
        net: Net,
        spec: TaskSpec | Loss,
        trainers: Trainer | TrainerSpec | Mapping[str, Trainer | TrainerSpec] | None = None,
        context: Context | Sequence[Context] | str | None = None,
        initializer: str | Initializer | Mapping[str, str | Initializer] | None = None,
        frozen: Parameters | Sequence[Parameters] = (),
        precision: str = "float32",
        balance: Balance | None = None,
        accumulate: int = 1,
        world: World = ALONE,
        engine: str = AUTO,
        compile: bool | str = AUTO,
    ) -> None:
        world = checked_value("world", world, _World)
        log_once = LogOnce(get_logger(world))
        engine, library = checked_value("engine", engine, _Engine), library_of(net)
        name = choose_engine(engine, context, log_once, library)
        setup = Setup(
            net=net,
            spec=spec,
            trainers=trainers,
            context=context,
            initializer=initializer,
            frozen=frozen,
            precision=precision,
            balance=balance,
            accumulate=checked_value("accumulate", accumulate, Count),
            world=world,
            compile=checked_value("compile", compile, _Compile),
        )
        devices = None if context is None else str(context)
        self._chosen: dict[str, Any] = {  # for the record of a run
            "engine": name, "devices": devices, "compile": setup.compile, "precision": precision,
        }  # fmt: skip
        run = Run(RunState(world=world), world=world)
        made = engine_module(name, library).make_engine(setup, run.state, log_once)
        self._assemble(made, run, log_once, Calls(log_once.logger))

    def _assemble(self, engine: Engine, run: Run, log_once: LogOnce, calls: Calls) -> None:
        self.world, self.logger, self._log_once = run.world, log_once.logger, log_once
        self._engine, self._session, self._run = engine, engine.session, run
        self._calls = calls  # of this estimator and those of its tools
        self._handlers = HandlerRunner(self)
        self._checkpointer = RunCheckpointer(engine, run, self._handlers, log_once)
        self._loop_parts = engine, run, self._handlers, log_once
        self._fit_loop: FitLoop | None = None  # of the running fit
        self._batch_loop: FitLoop | None = None  # of calls of `fit_batch` without a fit

    # ---- training ------------------------------------------------------------------------------------------

    @checked
    def fit(
        self,
        train_data: Loader,
        val_data: Loader | None = None,
        epochs: Count | None = None,
        batches: Count | None = None,
        event_handlers: Handler | Sequence[Handler] | None = None,
        resume: PathLike | None = None,
        batch_axis: FromZero = 0,
        sampling: Sampling | None = None,
        val_batches: Count | None = None,
        overfit: Count | None = None,
        output: PathLike | None = None,
        seed: Seed | None = None,
    ) -> History:
        """Train for a number of epochs or batches.

        Parameters
        ----------
        train_data, val_data : DataLoader, DataIter or re-iterable of batches, or dict of str to these
            `val_data` is evaluated after each epoch. A dict has a loader for each task; its batches lack the
            labels of the other tasks. A dict of validation data in which no key names a task or a label has
            several sets, whose figures are ``val_<key>_…``.
        epochs, batches : int
            The number of *further* epochs or batches to train. Give exactly one of them.
        event_handlers : handler or list of handlers, optional
            Added to the defaults: stopping, metrics, validation, interrupts, logging and progress bars. One
            that derives from one of the last four, or names it in its attribute `replaces`, replaces it.
        resume : path, optional
            A run's folder, a folder of checkpoints or one checkpoint. Training resumes from the newest intact
            checkpoint, even in the middle of an epoch, as if the fit that saved it had never stopped. Use the
            same arguments and data as for that fit; `epochs` and `batches` count from its beginning. If there
            is no checkpoint yet, training starts from scratch.
        batch_axis : int
            The axis of the samples in all slots: 1 for time-major batches.
        sampling : Proportional, RoundRobin, Ratios or Together, optional
            How many batches an epoch takes from each of several loaders, and in which order; see
            ``multifit.sampling``. Defaults to ``Proportional()``: each batch once, in random order.
        val_batches : int, optional
            Evaluate only the first n batches of `val_data`, of each loader if it has several.
        overfit : int, optional
            Train on the first n batches alone, the same ones in each epoch, to see whether the net can learn
            them by heart. They are kept in memory, and evaluated in place of `val_data`; if the spec has one
            for `evaluate`, it takes other batches, and the first n of `val_data` are evaluated.
        output : str or path, optional
            The run's folder, new, empty or that of `resume`, which then holds what `multifit train` writes:
            ``history.json``, ``plan.txt`` and ``plan.json``, ``settings.json``, ``log.txt``,
            ``final.params`` or ``final.pt`` for :meth:`load`, ``curves.png``, events for TensorBoard, and
            checkpoints, the last one of which is saved without a schedule. Handlers among `event_handlers`
            replace those that save checkpoints, which must go to the same folder, and events.
        seed : int, optional
            Seeds the generators of Python, NumPy and the engine before anything else: fits with the same seed
            end with the same numbers. It covers the initial values of parameters that are initialised in this
            fit; what was made before, such as shuffled data, it does not.

        Returns
        -------
        History
            Every figure's values, one per epoch of this fit.

        Raises
        ------
        SpecError, DataError, TrainerError
            Something does not fit; no parameter has changed. With `resume`, also if the spec, the net or the
            trainers are not those of the checkpoint.
        ValueError
            Both or neither of `epochs` and `batches` are given, a handler cannot work here, `resume` is a
            file or has only damaged checkpoints, `batch_axis` is negative, `val_batches` is given without
            `val_data`, `overfit` with `resume` or in several processes, `output` is in use or not empty, or
            `seed` is not that of the CheckpointHandler or of the run that is resumed.
        """
        with self._calls.running("fit"):
            if seed is not None:
                seed_everything(seed)
            once = bool(epochs in (1, None) or overfit)
            endless = (
                "" if batches or overfit else "batches=1000",
                "" if val_batches or overfit else "val_batches=100",
            )
            train_data, val_data = check_data(
                train_data, val_data, sampling, self._session, once, epochs == 1, endless=endless
            )
            if val_batches is not None and val_data is None:
                raise ValueError(
                    "fit: val_batches limits val_data=, which is not given; ValidationHandler has batches="
                )
            if (epochs is None) == (batches is None):
                raise ValueError(
                    f"fit was given epochs={epochs} and batches={batches}; "
                    "give exactly one: epochs=10, or batches=1000"
                )
            if overfit is not None:
                train_data, val_data = overfit_data(self._session, train_data, val_data, overfit, resume)
                line = "overfit=%d: trains on the first batches alone, the same ones in each epoch"
                self.logger.info(line, overfit)
                val_batches = val_batches or overfit
            handlers = checked_handlers(event_handlers)
            writing: AbstractContextManager[list[object]] = nullcontext(handlers)
            if output is not None:
                record = RunRecord(seed=seed, epochs=epochs, command="MultiEstimator.fit", **self._chosen)
                pictures = partial(run_plots, self, val_data, batch_axis, val_batches)
                writing = writing_run(self, record, Path(output).absolute(), resume, handlers, pictures)
            data = train_data, val_data, val_batches
            try:
                with writing as handlers:
                    return self._fit(data, epochs, batches, handlers, resume, batch_axis, seed)
            finally:
                self._fit_loop = self._batch_loop = None

    def _fit(
        self,
        data: tuple[Any, Any, int | None],
        epochs: int | None,
        batches: int | None,
        event_handlers: Any,
        resume: PathLike | None,
        batch_axis: int,
        seed: int | None,
    ) -> History:
        train_data, val_data, val_batches = data
        loaders = each_loader("train_data", train_data).values()
        if message := oversubscription(sum(map(self._session.readers[TRAIN].workers, loaders))):
            self._log_once(message)
        events, val_batch = fit_events(self, event_handlers, val_data, val_batches, self._engine)
        set_seed(self.state, events.handlers, seed)
        hooks = TrainingHooks(events)
        needs_outputs = self._overrides("fit_batch") or events.takes_outputs(TRAINING_EVENTS)
        self._run.sets.update(getattr(val_batch, "sets", ()))
        with self._engine.fit(hooks, needs_outputs, batch_axis):
            loop = self._fit_loop = FitLoop(*self._loop_parts, train_data, val_batch)
            self._run.start(epochs, batches)
            loop.read_tasks()
            with hooks.around("fit"), self._handlers.fit(events):
                limits = {"epochs": epochs, "batches": batches, "seed": seed}
                start_together(self._engine, events.handlers, self._log_once, **limits)
                loop.check_tasks()
                checkpoint = None if resume is None else self._checkpointer.resume(resume, seed)
                if checkpoint is None:  # which holds the weights of the classes
                    self._engine.balance_classes(train_data, ends=epochs is not None)
                with self._engine.running():
                    loop.train(self.fit_batch, checkpoint)
                self._session.shared.average_statistics()
        return self._run.history

    def fit_batch(self, batch: Any) -> BatchResult:
        """Train on one batch, as the loader yielded it; may be overridden.

        The first batch of a fit is checked, and trained on only if everything fits.

        You may also call this in a loop of your own, without a fit. Then the first batch is checked too, and
        batches are counted, but no handlers are called. Raises TrainerError in such a loop if a trainer
        accumulates gradients, because accumulation begins and ends with a fit.
        """
        if self._fit_loop is not None:
            return self._fit_loop.train_batch(batch)
        if self._batch_loop is None:
            self._engine.restart()
            self._batch_loop = FitLoop(*self._loop_parts)
        self._session.trainers.check_none_accumulates()
        with self._engine.running():
            result = self._batch_loop.train_batch(batch)
        self.state.count(result.batch.total)
        return result

    @checked
    def check(
        self,
        data: Loader,
        val_data: Loader | None = None,
        batch_axis: int = 0,
        sampling: Sampling | None = None,
        layers: bool = False,
    ) -> Plan:
        """Check that spec, net, data and trainers fit together, and return the plan; no parameter changes.

        The arguments are as for :meth:`fit`; with `layers`, the plan lists the net's modules, the shapes
        that they return and their parameters, as Keras' ``model.summary()`` does. A Gluon net that is not
        initialised is initialised, and lazy modules get their shapes. The random states of Python, NumPy and
        PyTorch are restored; MXNet's generator may advance. Raises SpecError, DataError or TrainerError with
        everything that does not fit.
        """
        with self._calls.running("check"), preserve_rng():
            engine = self._engine.fork(self.state)
            session = engine.session
            with session.samples_along(batch_axis):
                data, val_data = check_data(data, val_data, sampling, session, what="data")
                if isinstance(data, TaskLoaders):
                    first: Any = engine.first_batches(TRAIN, data, "data")
                else:
                    first = session.readers[TRAIN].peek_first(data, "data")[0]
                if isinstance(val_data, TaskLoaders):
                    val_data = engine.first_batches(EVALUATE, val_data, "val_data")
                run = engine.dry_run(first, val_data)
            self._run.plan = engine.make_plan(run, layers)
            return self._run.plan

    def freeze(self, params: Parameters | Sequence[Parameters]) -> list[str]:
        """Freeze parameters from the next batch on: nothing updates them, not even weight decay or momentum.

        Call it between fits, or in a handler. Trainers keep the states of their parameters. A BatchNorm layer
        is frozen as by the argument `frozen`. To freeze for a part of a fit, see :class:`multifit.Freeze`.

        Parameters
        ----------
        params : str, part of the net, parameters, or sequence of these
            The parameters; strings are patterns that must match a whole name.

        Returns
        -------
        list of str
            The names of those that were not frozen before.

        Raises
        ------
        TrainerError
            A selection is empty, or the argument `frozen` of the estimator has it too.
        """
        with self._calls.running("freeze", within=True):
            names: list[str] = self._session.trainers.set_frozen("freeze", params, frozen=True)
            return names

    def unfreeze(self, params: Parameters | Sequence[Parameters]) -> list[str]:
        """Let frozen parameters learn from the next batch on, as before :meth:`freeze`, which takes the same.

        Returns the names of those that were frozen before.
        """
        with self._calls.running("unfreeze", within=True):
            names: list[str] = self._session.trainers.set_frozen("unfreeze", params, frozen=False)
            return names

    # ---- evaluating ----------------------------------------------------------------------------------------

    @checked
    def evaluate(
        self,
        data: Loader,
        event_handlers: Handler | Sequence[Handler] | None = None,
        batch_axis: FromZero = 0,
        batches: Count | None = None,
    ) -> dict[str, float]:
        """Measure losses and metrics on `data`.

        Parameters
        ----------
        data : DataLoader, DataIter or re-iterable of batches, or dict of str to these
            A dict has a loader for each task. Its loaders are read one after the other, and each measures the
            losses and metrics that it has labels for. If no key names a task or a label, it has several sets,
            and figures are ``<key>_…``.
        event_handlers : handler or list of handlers, optional
            Called at the evaluation's events. Defaults to those of the running fit, or else to a progress
            bar.
        batch_axis : int
            The axis of the samples in all slots.
        batches : int, optional
            Measure only the first n batches, of each loader if there are several.

        Returns
        -------
        dict of str to float
            The figures by name, without prefix.

        Raises
        ------
        SpecError, DataError
            The data or the net does not fit the spec.
        RuntimeError
            A handler calls this in the middle of an evaluation.
        """
        within = self._calls.running("evaluate", within=True)
        with within, self._session.model.evaluating():
            figures = self._evaluate(data, event_handlers, batch_axis, batches)
        if self._handlers.running and self.history.epochs:  # before the first epoch, the history has no row
            self.history.record({figure_name(EVALUATE, name): value for name, value in figures.items()})
        return figures

    def _evaluate(
        self, data: Any, event_handlers: Any, batch_axis: int, most: int | None
    ) -> dict[str, float]:
        session, handlers = self._session, self._handlers
        turn = self.state.step if handlers.running else None  # tells evaluations within a fit apart
        data = check_evaluated(data, session, endless="" if most else "batches=100")
        parts, limit = {"": data}, most
        if isinstance(data, TaskLoaders):
            data.most, limit = most, None
            if not data.slots:
                with session.samples_along(batch_axis):
                    self._engine.first_batches(EVALUATE, data, "data")
            self._run.sets.update(data.sets)
            parts = data.each_set()
        session.read_tasks(EVALUATE, data.slots if isinstance(data, TaskLoaders) else {})
        reader = session.readers[EVALUATE]
        passes = ((before, reader.peek_first(part, "data", turn)[1]) for before, part in parts.items())
        first = next(passes)  # raises before handlers are called
        counts = [count for count in (batch_count(data), limit) if count is not None]
        with handlers.evaluation(event_handlers):
            needs_outputs = self._overrides("evaluate_batch") or handlers.needs_outputs(EVALUATION_EVENTS)
            with self._engine.evaluation(needs_outputs, batch_axis):
                stage, state, events = session.stages[EVALUATE], RunState(), EVALUATION_EVENTS
                figures: dict[str, float] = {}
                with stage.figures.alone():
                    handlers.emit(events.begin, batches=min(counts, default=None))
                    for before, batches in chain([first], passes):
                        stage.reset()
                        run_pass(
                            islice(batches, limit),
                            self.evaluate_batch,
                            events,
                            handlers.dispatcher,
                            state,
                            lambda: f"evaluating, batch {state.batch + 1}",
                        )
                        self._engine.join_figures(EVALUATE)
                        measured = stage.figures.read()
                        figures.update({f"{before}{name}": value for name, value in measured.items()})
                handlers.emit(events.end, figures=figures)
                return figures

    def interpret(self, data: Loader, batch_axis: int = 0, batches: int | None = None) -> Any:
        """Evaluate, and return what the net confuses; the arguments are as for :meth:`evaluate`.

        Returns an :class:`Interpretation`, whose ``plots()`` are confusion matrices and scatter plots, or
        None if no output can be compared with a label. NumPy's and Python's random states are restored.
        """
        if not comparisons(self.spec.evaluation, self.arrays.comparison):
            return None
        found = Interpretation()
        with preserve_rng():
            self.evaluate(data, found, batch_axis, batches)
        return found

    def evaluate_batch(self, batch: Any) -> BatchResult:
        """Measure one batch, as the loader yielded it; may be overridden."""
        with self._engine.running():
            return self._engine.evaluate_batch(batch)

    @checked
    def predict(
        self,
        data: Loader | Array | Numbers,
        batch_axis: int = 0,
        gather: bool = True,
        activation: _Activation | Mapping[str, _Activation | None] | None = None,
        output: PathLike | None = None,
    ) -> dict[str, Any]:
        """Run the net on `data`.

        Parameters
        ----------
        data : list, loader, tuple, dict or array
            A list or loader is many batches; a tuple, a dict or an array is one batch. Labels may be missing.
        batch_axis : int
            The axis of the samples in all slots, and in every output that has its samples there. Other
            outputs have them along the first axis.
        gather : bool
            With several processes: whether each of them gets the outputs of all, or only those of its own
            share.
        activation : {"softmax", "sigmoid"}, function or dict of str to these, optional
            What is applied to the outputs, on the host: a dict names the outputs, anything else is for the
            only output. The softmax is along the class axis of the softmax loss that takes the output, such
            as 1 for PyTorch's ``CrossEntropyLoss`` and Gluon's ``SoftmaxCrossEntropyLoss(axis=1)``, or else
            along the last axis. A function gets a NumPy array: what one device returned for a batch.
        output : str or path, optional
            A new or empty folder, in one process and with ``batch_axis=0``. The outputs are written there
            batch by batch, and are never in memory as a whole: ``<name>.npy`` for each, which `numpy.load`
            reads. The folder appears when all is written.

        Returns
        -------
        dict of str to numpy.ndarray
            Every output by name, the batches concatenated; a list of arrays if their shapes differ or an
            output has no batch axis. With `output`, memory maps (`numpy.memmap`) of the files.

        Raises
        ------
        SpecError, DataError
            The data or the net does not fit the spec, `activation` does not fit the outputs, or with
            `output`, shapes differ between batches.
        ValueError
            `output` is a file or not empty, or cannot be used here.
        """
        with self._calls.running("predict", within=True), self._session.model.evaluating():
            raise_problems(rank_problems(self.world, "data", data))
            raise_problems(endless_problems("data", data, "itertools.islice(data, 100)"))
            with self._engine.running(), self._session.samples_along(batch_axis):
                if output is None:
                    return self._engine.predict(data, gather, activation, None)
                if batch_axis or not self.world.alone:
                    raise ValueError(
                        "output= writes in one process, with samples along the first axis: leave it out, or "
                        "predict without world= and batch_axis="
                    )
                with prediction_files(output) as files:
                    self._engine.predict(data, gather, activation, files.write)
                return files.open(Path(output))

    # ---- after training ------------------------------------------------------------------------------------

    @checked
    def load(self, path: PathLike, which: str = "last") -> Path:
        """Set the net's parameters, and those of losses, to trained ones, for use or for further training.

        Trainers and counters stay as they are: to continue a training, ``fit(resume=path)`` restores them
        too. Nothing that is read can run code.

        Parameters
        ----------
        path : str or path
            A run's folder, a folder of checkpoints, or one checkpoint.
        which : str
            "last": the final parameters of a run that has finished, else the newest intact checkpoint.
            "best": the intact checkpoint with the best value of the figure that its CheckpointHandler
            monitored. Or the name of a checkpoint. Of checkpoints, what evaluations used is taken, such as
            the averages of WeightAveraging. Damaged checkpoints are logged and passed over.

        Returns
        -------
        Path
            The file that was read.

        Raises
        ------
        SpecError
            The file has parameters of other names, shapes or dtypes; none was set.
        ValueError
            There are no such parameters, or their file is damaged.
        """
        with self._calls.running("load"):
            world, snapshot, warn = self.world, self._engine.snapshot, self.logger.warning
            found = find_trained(Path(path), which, snapshot, warn) if world.first else None
            file = Path(world.from_first(str(found)))
            self._engine.publish()
            snapshot.read_trained(file)
            return file

    @checked
    def save(self, folder: PathLike) -> Path:
        """Write the parameters of the net, and of losses that have some, to a folder, for :meth:`load`.

        Returns the file of the net's: ``final.params``, which ``net.load_parameters`` reads too, or of a
        module ``final.pt``, which holds its ``state_dict``. Raises ValueError if the folder is a file, or if
        parameters have no values yet.
        """
        path = Path(folder) / self._engine.snapshot.final_file
        check_folder("folder", Path(folder))
        self._engine.snapshot.write_trained(path)
        return path

    @property
    def best_checkpoint(self) -> Path | None:
        """The best intact checkpoint in the folder of the last fit's CheckpointHandler with a `monitor`.

        None if there is none. With several figures, the first one counts.
        """
        folder = self._handlers.monitored_folder
        found = None if folder is None else best_checkpoint(folder)[0]
        return None if found is None else found.path

    # ---- tools: they leave net, trainers and run as they are -----------------------------------------------

    def find_learning_rate(
        self,
        data: Loader,
        start: float = 1e-6,
        end: float = 1.0,
        batches: int = 100,
        trainer: str | None = None,
        batch_axis: int = 0,
    ) -> RateSearch:
        """Search for a learning rate by training with a growing one, and leave everything as it was.

        Parameters
        ----------
        data : DataLoader, DataIter or re-iterable of batches
            Read as often as needed.
        start : float
            The first rate.
        end : float
            The last rate.
        batches : int
            The number of training steps, each with a higher rate.
        trainer : str, optional
            The trainer whose rate grows while the others keep theirs. Defaults to all trainers.
        batch_axis : int
            The axis of the samples in all slots.

        Returns
        -------
        RateSearch
            `rates`, `losses`, the `suggestion`, and ``plot()``.

        Raises
        ------
        SpecError, DataError, TrainerError
            Something does not fit, or `trainer` is unknown, or its optimizer has no learning rate.
        ValueError
            A rate is not valid, there are fewer than 10 batches, or the first batch's loss is not finite.
        """
        with self._calls.running("find_learning_rate"):
            engine, _ = self._fork("find_learning_rate", None)
            with engine.session.samples_along(batch_axis):
                return find_learning_rate(engine, data, start, end, batches, trainer)

    def profile(
        self,
        train_data: Loader,
        batches: int = 50,
        event_handlers: Handler | Sequence[Handler] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        batch_axis: int = 0,
    ) -> Profile:
        """Measure where the time of a training step goes, and leave everything as it was.

        Trains on some batches as a fit does, three times: undisturbed, waiting for the device after each part
        of a step, and under the profiler of MXNet or PyTorch. Parameters, trainers, figures, history,
        counters and random states are left as they were; a net that is not initialised is initialised, and
        MXNet's random generator may advance. An overridden `fit_batch` is not called.

        Parameters
        ----------
        train_data : DataLoader, DataIter or re-iterable of batches
            Read as often as needed.
        batches : int
            Number of steps in each measurement.
        event_handlers : handler or list of handlers, optional
            Called as in a fit that ends in its first epoch, and timed. Files that they write and state that
            they change are not restored. The default handlers are not added.
        clock : callable
            Returns the elapsed time in seconds.
        batch_axis : int
            The axis of the samples in all slots.

        Returns
        -------
        Profile
            Prints as a table of the parts of a step and of the longest operators.

        Raises
        ------
        SpecError, DataError, TrainerError
            Something does not fit; the data is empty, or can be read only once.
        ValueError
            `batches` is not a whole number of at least 1, or a handler cannot be used.
        """
        with self._calls.running("profile"):
            scratch = MultiEstimator.__new__(MultiEstimator)  # for the handlers
            scratch._assemble(*self._fork("profile", batches), self._log_once, self._calls)
            engine, run_handlers = scratch._engine, scratch._handlers.fit
            scratch.history.open_row()
            with engine.session.samples_along(batch_axis):
                return profile(scratch, engine, run_handlers, train_data, batches, event_handlers, clock)

    @checked
    def export(
        self,
        folder: PathLike,
        data: Loader | None = None,
        format: Annotated[str, one_of(*FORMATS)] | None = None,
    ) -> list[Path]:
        """Save the net, as it runs in evaluation, for use elsewhere.

        Parameters
        ----------
        folder : str or path
            The folder to write to. The files depend on the format: "gluon" writes ``net-symbol.json``,
            ``net-0000.params`` and ``export.json``; "onnx" ``net.onnx``; "torch" ``net.py``, ``net.pt`` and
            ``export.json``; "pt2" ``net.pt2``.
        data : array, tuple, dict, list or loader, optional
            Data as for `predict`; needed only before the first fit, check, evaluation or prediction.
        format : {"gluon", "onnx", "torch", "pt2"}, optional
            Defaults to "gluon" for a Gluon net, and "torch" for a PyTorch net. "gluon" is read by
            ``gluon.SymbolBlock.imports``. "onnx" needs the package onnx. "torch" is a Python module that
            needs only PyTorch, and can be trained; of a PyTorch net, its parameters. "pt2" is a program of
            `torch.export`, which only evaluates. The last two need PyTorch.

        Returns
        -------
        list of Path
            The files, written completely or not at all; inputs and outputs are named as in the spec.

        Raises
        ------
        SpecError
            The net has other parameters by now, cannot be traced, as it works on arrays only, or an operator
            has no translation to PyTorch.
        ValueError
            The format is unknown, the inputs' shapes are unknown, ONNX lacks an operator, or `torch.export`
            cannot export the net.
        ImportError
            ONNX or PyTorch is not installed.
        """
        with self._calls.running("export", within=True), self._session.model.evaluating():
            engine, format = self._engine, format or self._engine.export_format
            engine.publish()
            write: Callable[..., list[Path]] = engine.export
            if format not in engine.formats:
                write = partial(engine_module("torch", what=f'format="{format}"').export, engine)
            return write(folder, data, format)

    # ---- what handlers read and call -----------------------------------------------------------------------

    @property
    def net(self) -> Net:
        """The net, with the current values of its parameters.

        To train another net, make another estimator.
        """
        self._engine.publish()
        return self._engine.net

    @property
    def spec(self) -> TaskSpec:
        """The declarations of outputs, labels, losses and metrics. For others, make another estimator."""
        return self._session.spec

    @property
    def context(self) -> list[Context]:
        """The devices."""
        return list(self._session.model.contexts)

    @property
    def batch_axis(self) -> int:
        """The axis of the samples in the running fit or evaluation."""
        return self._session.batch_axis

    @property
    def state(self) -> RunState:
        """The counters of the run."""
        return self._run.state

    @property
    def history(self) -> History:
        """The figures of the running or last fit."""
        return self._run.history

    @property
    def plan(self) -> Plan | None:
        """What the last check or fit established about names, shapes and trainers."""
        return self._run.plan

    @property
    def max_epoch(self) -> int | None:
        """How many epochs the fit lasts; None if it is limited by batches. Handlers may set it."""
        return self._run.max_epoch

    @max_epoch.setter
    def max_epoch(self, epochs: int | None) -> None:
        self._run.max_epoch = epochs

    @property
    def max_batch(self) -> int | None:
        """How many batches the fit lasts; None if it is limited by epochs. Handlers may set it."""
        return self._run.max_batch

    @max_batch.setter
    def max_batch(self, batches: int | None) -> None:
        self._run.max_batch = batches

    @checked
    def figures(
        self, stage: Annotated[str, one_of(*PREFIXES)] = "train", quick: bool = False
    ) -> dict[str, float]:
        """Return the running figures of a stage, "train" or "evaluate", with prefix; waits for the engine.

        They are those of the batches so far. If `quick`, figures are left out that are computed from all
        arrays of these batches, such as those of functions; until the pass has ended, when nothing is left to
        compute.
        """
        figures = self._session.stages[stage].figures.read(quick)
        return {figure_name(stage, name): value for name, value in figures.items()}

    @checked
    def direction(self, figure: str) -> str | None:
        """Return "min" if lower values of a figure are better, "max" if higher ones are, None if unknown."""
        prefix, name = split_figure(figure)
        if not prefix:
            return "max" if figure == DELTA_M else None
        stage = STAGE_OF_PREFIX[prefix]
        known = self._session.stages[stage].figures.direction
        return known(name) or (known(split_set(name, self._run.sets)[1]) if stage == EVALUATE else None)

    @property
    def validation_sets(self) -> Collection[str]:
        """The names of the sets for validation that have figures of their own, such as ``val_<set>_loss``."""
        return tuple(self._run.sets)

    def learning_rates(self) -> dict[str, float]:
        """Return the learning rates: ``lr``, or ``lr_<trainer>`` if there are several trainers."""
        rates: dict[str, float] = self._session.trainers.learning_rates()
        return rates

    def gradients(self) -> dict[str, dict[str, list[Array]]]:
        """Return the gradients that no update has used yet, by trainer and parameter: one array per device.

        They can be read between backward and update: in ``hold_update`` and in ``change_gradients``. The
        update consumes them: in ``batch_end`` and ``epoch_end``, a trainer that has updated its parameters
        has none. Parameters that the batch did not reach are left out, and so are trainers that do not update
        after this batch. Within ``change_gradients``, the arrays may be changed in place; the trainers use
        the changed values.
        """
        return self._engine.gradients()

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """The parameters of net and losses by structural name, such as ``body.0.weight``."""
        parameters: Mapping[str, Parameter] = self._session.model.parameters
        return parameters

    def values(self, gradients: bool = False) -> dict[str, Numbers]:
        """Return copies of all parameters and running statistics by name, as NumPy arrays.

        With `gradients`, return those of the last batch instead.
        """
        return self._engine.values(gradients)

    def set_values(self, values: Mapping[str, Any]) -> None:
        """Set parameters and running statistics by name; values are NumPy arrays, or the engine's own."""
        self._engine.set_values(values)

    @property
    def arrays(self) -> Arrays:
        """What handlers do with arrays besides arithmetic: the same functions, whatever the engine."""
        return self._engine.arrays

    def evaluated_parameters(self) -> Mapping[str, Array]:
        """Return the values that evaluations of the running fit use in place of parameters, by name.

        They are the attribute `evaluated_parameters` of handlers, such as the averages of WeightAveraging:
        one array for each of these parameters.
        """
        return self._handlers.evaluated_parameters()

    @property
    def trainers(self) -> Mapping[str, Trainer]:
        """The trainers by name.

        The `learning_rate`, `weight_decay` and `momentum` of each can be read and set at any time, even while
        a schedule runs. All else is that of its ``gluon.Trainer`` or PyTorch optimizer. Raises TrainerError
        if the trainers cannot be built, or do not cover the parameters.
        """
        trainers: Mapping[str, Trainer] = self._session.trainers.get()
        return trainers

    def collect_checkpoint(self) -> None:
        """Gather each rank's own state; all ranks must call this before the first one writes a checkpoint."""
        self._checkpointer.collect()

    @checked
    def write_checkpoint(self, folder: PathLike) -> None:
        """Write everything that the running fit needs to resume into an existing, empty folder.

        With several ranks, first call :meth:`collect_checkpoint` on all of them.
        """
        self._checkpointer.write(Path(folder))

    @property
    def saves_generators(self) -> bool:
        """Whether checkpoints hold the states of all random generators; those of MXNet's cannot be read."""
        return self._engine.saves_generators

    def reseed(self) -> None:
        """Seed MXNet's generator, whose state cannot be saved, from the run's seed and position."""
        self._run.reseed()

    def reseed_epoch(self) -> None:
        """Seed Python's, NumPy's and MXNet's generators from the run's seed and the epoch."""
        self.state.seed = self.world.from_first(self.state.seed)
        self._run.seed_epoch(self.state.epoch)

    def __repr__(self) -> str:
        return f"MultiEstimator({type(self._engine.net).__name__}, {self.spec!r})"

    def _repr_html_(self) -> str:
        """Return the plan, or the spec without one, and the last fit's figures, for a notebook."""
        plan = self.plan._repr_html_() if self.plan else f"<pre>{escape(self.spec.summary())}</pre>"
        figures = self.history._repr_html_() if self.history.epochs else ""
        return f"<p>{escape(repr(self))}</p>\n{plan}\n{figures}"

    # ---- helpers -------------------------------------------------------------------------------------------

    def _overrides(self, step: str) -> bool:
        """Whether a subclass overrides a step; it may read outputs and losses."""
        return getattr(type(self), step) is not getattr(MultiEstimator, step)

    def _fork(self, tool: str, max_batch: int | None) -> tuple[Engine, Run]:
        """Return an engine for the same net and trainers, and a run of its own."""
        if not self.world.alone:
            raise RuntimeError(
                f"{tool} works in one process, and {self.world.size} train together; call it in a run "
                "without world=: what it finds holds for several processes too"
            )
        run = Run(replace(self.state))
        run.start(None, max_batch)
        return self._engine.fork(run.state), run
