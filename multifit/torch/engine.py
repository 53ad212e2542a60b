"""What an estimator of a PyTorch net runs with: the model, trainers, and stages with their figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from ..arguments import FromZero, checked_value
from ..distributed import World
from ..engines import AUTO, Setup
from ..engines.reader import Reader
from ..engines.windows import Windows
from ..events import NO_HOOKS, TrainingHooks
from ..log_once import LogOnce
from ..sampling import LoaderCounts, TaskLoaders
from ..spec import TaskSpec
from ..spec.parsing import coverage
from ..spec.terms import TaskSlots, Term, with_optional
from ..stages import STAGES, TRAIN
from ..state import RunState
from .balance import AnyBalancer, GradientBalancer, make_balancer
from .batch import Batch, BatchSplitter, TaskSplitter, ValueWeights
from .compiling import compiled
from .cuda_graphs import cuda_graphs
from .figures import StageFigures, StageMetric, declared_metrics
from .model import Model, default_spec
from .ranks import SharedParameters
from .step import Stage
from .trainers import Trainers


class Engine:
    """A model and its trainers, and what is rebuilt for every fit: stages and batch splitters.

    `spec` says what is routed where. Loss weights that are functions are called with `state`. `metrics` are
    the metrics of each stage. `balancer` weighs the losses of training, if there is one. `world` holds the
    ranks that train together.

    `stages` are named "train" and "evaluate". `loaders` is set, before :meth:`read_tasks`, if several
    loaders train. `hooks` call the handlers that change a training step. `batch_axis` is the axis of the
    samples in all slots. `readers` read the loaders of each stage. `signatures` are the shapes and dtypes of
    each stage's batches, for exporting. `known_labels` are the shapes and dtypes of the labels that may be
    missing, from the last batch that had them. `balanced_weights` are the weights of the classes that a fit
    has counted. `shared` keeps the ranks' parameters equal. `windows` read the batches that trainers
    accumulate.
    """

    def __init__(
        self,
        model: Model,
        trainers: Trainers,
        spec: TaskSpec,
        state: RunState,
        log_once: LogOnce,
        metrics: dict[str, list[StageMetric]],
        balancer: AnyBalancer | None,
        world: World,
        compile: bool | str,
    ) -> None:
        self.model, self.trainers, self.spec, self.state = model, trainers, spec, state
        self._log_once, self._metrics, self._compile = log_once, metrics, compile
        self.balancer, self.world, self.batch_axis = balancer, world, 0
        self.loaders: TaskLoaders | None = None
        self.readers = {name: Reader(world) for name in STAGES}
        self.signatures: dict[str, list[Any]] = {name: [] for name in STAGES}
        self.balanced_weights: dict[str, Sequence[float]] = {}
        self.shared = SharedParameters(world, model, trainers.frozen_statistics)
        self.windows = Windows(self, self._normalizer)
        self.restart()

    @classmethod
    def of(cls, setup: Setup, state: RunState, log_once: LogOnce) -> Engine:
        """Return an estimator's engine; raises what the estimator's constructor raises."""
        spec = setup.spec if isinstance(setup.spec, TaskSpec) else default_spec(setup.spec, log_once)
        if setup.initializer is not None:
            raise ValueError(
                "initializer= is for Gluon nets, whose parameters may have no values yet; initialise a "
                "module's with torch.nn.init, such as in net.apply(function)"
            )
        model = Model(setup.net, spec, setup.context, setup.precision, log_once)
        trainers = Trainers(setup.trainers, setup.frozen, model, log_once, setup.accumulate)
        balancer = make_balancer(setup.balance, spec, model.device, setup.world, model.parameters)
        metrics = declared_metrics(spec)
        return cls(model, trainers, spec, state, log_once, metrics, balancer, setup.world, setup.compile)

    def fork(self, state: RunState) -> Engine:
        """Return an engine for the same model and trainers with metrics and figures of its own."""
        metrics = {name: [metric.fork() for metric in metrics] for name, metrics in self._metrics.items()}
        balancer = None if self.balancer is None else self.balancer.fork()
        parts = self.model, self.trainers, self.spec, state, self._log_once, metrics, balancer, self.world
        fork = Engine(*parts, self._compile)
        fork.signatures, fork.shared = self.signatures, self.shared
        fork.balanced_weights = self.balanced_weights
        return fork

    @property
    def balance(self) -> Any:
        """The method of balancing, or None."""
        return None if self.balancer is None else self.balancer.method

    def restart(self, hooks: TrainingHooks = NO_HOOKS, needs_outputs: bool = True) -> None:
        """Discard all figures, as at the beginning of a fit: the net may have changed.

        `hooks` call the handlers that change a training step. `needs_outputs` says whether somebody reads the
        outputs of training. Raises SpecError if the net no longer has the parameters that it had when the
        model was made.
        """
        self.model.check_parameters()
        self.model.begin()
        self.hooks, self._needs_outputs, self.loaders = hooks, needs_outputs, None
        for metric in (metric for metrics in self._metrics.values() for metric in metrics):
            metric.restart()
        self.known_labels: dict[str, dict[str, Any]] = {name: {} for name in STAGES}
        self._tasks: dict[str, Mapping[str, TaskSlots]] = {name: {} for name in STAGES}
        self._joined = dict.fromkeys(STAGES, False)
        self._splitters: dict[Any, Any] = {}
        self.windows.begin()
        self.stages = {name: self._new_stage(name) for name in STAGES}

    def read_tasks(self, name: str, slots: Mapping[str, TaskSlots], joined: bool = False) -> None:
        """Prepare a stage for the batches of several loaders, or of one.

        `slots` are the slots of each loader's batches, empty if there is one loader. `joined` says whether
        the loaders' batches are joined into one. If `slots` or `joined` changed, the stage's figures are
        discarded.
        """
        if (slots, joined) == (self._tasks[name], self._joined[name]):
            return
        self._tasks[name], self._joined[name] = slots, joined
        self._splitters = {key: splitter for key, splitter in self._splitters.items() if key[0] != name}
        for metric in self._metrics[name]:
            metric.restart()
        self.stages[name] = self._new_stage(name)

    def bound_parameters(self) -> dict[tuple[str, ...], list[nn.Parameter] | None]:
        """Return, by the trainers to which losses are bound, their parameters; {} if no loss is bound."""
        names = {term.trainers for term in self.spec.terms}
        if names == {()}:
            return {}
        of_trainer = {name: list(self.trainers.updated(name).values()) for name in self.trainers.get()}
        return {key: [p for name in key for p in of_trainer[name]] if key else None for key in names}

    def _normalizer(self, term: Term, batch: Batch) -> float:
        return float(self.stages[TRAIN].objective.normalizer(term, batch))

    # ---- stages

    def _new_stage(self, name: str) -> Stage:
        training, model, metrics = name == TRAIN, self.model, self._metrics[name]
        hooks = self.hooks if training else NO_HOOKS
        lacking = self._lacking(name)
        spec = with_optional(self.spec if training else self.spec.evaluation, lacking)
        optional = {coverage(label): lacking & {label} for label in spec.labels}
        optional.update({term.key: term.optional for term in spec.metric_terms})
        for metric in metrics:
            metric.term = replace(metric.term, optional=optional[metric.term.key])
        means = list(self.balancer.means) if training and self.balancer is not None else []
        if training and self.loaders is not None:
            means.append(LoaderCounts(self.loaders))
        figures = StageFigures(
            spec, metrics, not hooks.handle_non_finite, means, stage=name, device=model.device
        )
        changes = any(hooks.active(what) for what in ("change_outputs", "change_objective"))
        compares = training and isinstance(self.balancer, GradientBalancer)
        compile = False if changes or compares else self._compile
        if compares and self._compile not in (False, AUTO):
            self._log_once.warning(
                f"compile={self._compile!r}: {type(self.balance).__name__} finds where tasks branch in "
                "autograd's graph of the net as it is, so training runs it operator by operator"
            )
        stage = Stage(
            model,
            spec,
            name,
            figures,
            self.world,
            hooks,
            self.trainers.after_train_mode,
            self.windows.shares if training and self.windows.reads_ahead else None,
            compiled(model.net, False if compares else self._compile, self._log_once),
            cuda_graphs(model, compile, self._log_once),
        )
        if training:
            stage.needs_outputs = self._needs_outputs
        return stage

    def _lacking(self, name: str) -> frozenset[str]:
        """Return the slots that some of a stage's batches lack."""
        if self._joined[name]:
            return frozenset()
        spec = self.spec if name == TRAIN else self.spec.evaluation
        slots = [set(names.values()) for names in self._tasks[name].values()]
        return frozenset(slot for names in slots for slot in spec.slot_names if slot not in names)

    # ---- batch splitters

    @contextmanager
    def samples_along(self, batch_axis: int) -> Iterator[None]:
        """Split batches along another axis within the block; raises ValueError if it is not a valid axis."""
        before, self.batch_axis = self.batch_axis, checked_value("batch_axis", batch_axis, FromZero)
        try:
            yield
        finally:
            self.batch_axis = before

    def splitter(self, name: str, labels: bool = True, changes: bool = True) -> Any:
        """Return the batch splitter of a stage, made when it is first needed.

        With ``labels=False``, batches may lack labels; with ``changes=False``, handlers do not change them.
        """
        hooks = self.hooks if name == TRAIN and changes else NO_HOOKS
        key = (name, labels, hooks.active("change_batch"), self.batch_axis)
        if key not in self._splitters:
            stage, tasks = self.stages[name], self._tasks[name] if labels else {}
            make = partial(self._new_splitter, name, hooks, labels)
            self._splitters[key] = TaskSplitter(stage.spec, tasks, make) if tasks else make()
        return self._splitters[key]

    def _new_splitter(
        self, name: str, hooks: TrainingHooks, labels: bool, own: TaskSlots | None = None
    ) -> BatchSplitter:
        stage, axis, changes = self.stages[name], self.batch_axis, hooks.active("change_batch")
        same = [each for each in STAGES if self.stages[each].spec is stage.spec]
        return BatchSplitter(
            stage.spec,
            self.model.device,
            self._log_once,
            labels=labels,
            batch_axis=axis,
            change=partial(hooks.change_batch, batch_axis=axis) if changes else None,
            signatures=self.signatures[name] if axis == 0 else None,
            real=self.model.dtype,
            current=self.readers[name].current,
            own=own,
            fill_in=None if stage.carried is None else stage.carried.fill_in,
            known=self.known_labels[name],
            casts=stage.casts,
            before=[self.signatures[each] for each in same] if axis == 0 else (),
            weights=ValueWeights(stage.spec, self.model.dtype, self.balanced_weights, self._log_once),
        )
