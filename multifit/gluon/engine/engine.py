"""Runs an estimator's batches: holds a model, its trainers, and the stages of training and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from ...arguments import FromZero, checked_value
from ...distributed import ALONE, World
from ...engines import Setup
from ...engines.added_slots import BalancedWeights, KnownLabels
from ...engines.reader import Reader
from ...engines.windows import Windows
from ...errors import Problem
from ...events import NO_HOOKS, TrainingHooks
from ...log_once import LogOnce
from ...sampling import LoaderCounts, TaskLoaders
from ...spec import TaskSpec
from ...spec.parsing import coverage
from ...spec.terms import TaskSlots, with_optional
from ...stages import STAGES, TRAIN
from ...state import RunState
from ..balance.make import AnyBalancer, make_balancer
from ..data.batch import Batch
from ..data.splitter import BatchSplitter, SlotSignature
from ..data.task_splitter import TaskSplitter
from ..data.value_weights import ValueWeights
from ..distributed.joint_gradients import JointGradients
from ..distributed.parameters import SharedParameters
from ..execution.changed_objective import refuse_blends
from ..execution.loss_graph import APART
from ..execution.loss_separation import TOGETHER, LossSeparation
from ..execution.loss_weights import normalizer
from ..execution.network import Network
from ..execution.stage import Stage
from ..metrics import copy_metric
from ..metrics.stage_metric import StageMetric, declared_metrics
from ..model.model import Model, default_spec
from ..model.model_trainers import ModelTrainers, bound_parameters

AnySplitter = BatchSplitter | TaskSplitter


class Engine:
    """A model and its trainers, and what is rebuilt for every fit: stages, graphs and batch splitters.

    `spec` says what is routed where. Loss weights that are functions are called with `state`. `metrics` are
    the metrics of each stage, by default the declared ones. `balancer` weighs the losses of training, if
    there is one. `world` holds the ranks that train together.

    `stages` are named "train" and "evaluate". `loaders` is set, before :meth:`read_tasks`, if several
    loaders train. `hooks` call the handlers that change a training step. `batch_axis` is the axis of the
    samples in all slots. `readers` read the loaders of each stage. `signatures` are the shapes and dtypes of
    each stage's batches, for exporting. `known_labels` are the shapes and dtypes of the labels that may be
    missing, from the last batch that had them. `balanced_weights` are the weights of the classes that a fit
    has counted. `gradients` adds up the ranks' gradients, and `shared` keeps their parameters equal.
    `windows` read the batches that trainers accumulate.
    """

    def __init__(
        self,
        model: Model,
        trainers: ModelTrainers,
        spec: TaskSpec,
        state: RunState,
        log_once: Callable[[str], None],
        metrics: dict[str, list[StageMetric]] | None = None,
        balancer: AnyBalancer | None = None,
        world: World = ALONE,
    ) -> None:
        self.model, self.trainers, self.spec = model, trainers, spec
        self.state, self._log_once, self.batch_axis = state, log_once, 0
        self.balancer = balancer
        self.loaders: TaskLoaders | None = None
        self._metrics = declared_metrics(spec) if metrics is None else metrics
        self.world, self.gradients = world, JointGradients(world)
        self.readers = {name: Reader(world) for name in STAGES}
        self.signatures: dict[str, list[SlotSignature]] = {name: [] for name in STAGES}
        self._split_specs: dict[str, TaskSpec] = {}
        self.balanced_weights: BalancedWeights = {}
        self.shared = SharedParameters(world, model.parameters, trainers.frozen.statistics)
        measured = partial(normalizer, reads=True)
        self.windows = Windows(self, measured, lambda: trainers.get().added_gradients)
        self.restart()

    @classmethod
    def of(cls, setup: Setup, state: RunState, log_once: LogOnce) -> Engine:
        """Return an estimator's engine; raises what the estimator's constructor raises."""
        spec = setup.spec if isinstance(setup.spec, TaskSpec) else default_spec(setup.spec, log_once)
        model = Model(setup.net, spec, setup.context, setup.initializer, setup.precision, log_once)
        trainers = ModelTrainers(setup.trainers, setup.frozen, model, log_once, setup.accumulate)
        balancer = make_balancer(setup.balance, spec, model.contexts[0], setup.world, model.parameters)
        return cls(model, trainers, spec, state, log_once, balancer=balancer, world=setup.world)

    def fork(self, state: RunState) -> Engine:
        """Return an engine for the same model and trainers with metrics, figures and graphs of its own.

        Both engines share what they learn about the shapes of batches.
        """
        metrics = {
            name: [StageMetric(metric.term, copy_metric(metric.metric)) for metric in stage_metrics]
            for name, stage_metrics in self._metrics.items()
        }
        balancer = None if self.balancer is None else self.balancer.fork()
        fork = Engine(
            self.model, self.trainers, self.spec, state, self._log_once, metrics, balancer, self.world
        )
        fork.signatures, fork.shared = self.signatures, self.shared
        fork.balanced_weights = self.balanced_weights
        return fork

    @property
    def balance(self) -> Any:
        """The method of balancing, or None."""
        return None if self.balancer is None else self.balancer.method

    def restart(self, hooks: TrainingHooks = NO_HOOKS, needs_outputs: bool = True) -> None:
        """Discard all graphs and figures, as at the beginning of a fit: the net may have changed.

        `hooks` call the handlers that change a training step. `needs_outputs` says whether somebody reads the
        outputs of training. Raises SpecError if the net no longer has the parameters that it had when the
        model was made.
        """
        self.model.check_parameters()
        self.model.discard_static_graphs()
        self.trainers.frozen.forget()
        self.hooks, self._needs_outputs, self.loaders = hooks, needs_outputs, None
        for metric in (metric for metrics in self._metrics.values() for metric in metrics):
            metric.restart()
        self.known_labels: dict[str, KnownLabels] = {name: {} for name in STAGES}
        self._tasks: dict[str, Mapping[str, TaskSlots]] = {name: {} for name in STAGES}
        self._joined = dict.fromkeys(STAGES, False)
        self._splitters: dict[Any, AnySplitter] = {}
        self.windows.begin()
        self.stages = {name: self.new_stage(name, metrics) for name, metrics in self._metrics.items()}

    def read_tasks(self, name: str, slots: Mapping[str, TaskSlots], joined: bool = False) -> None:
        """Prepare a stage for the batches of several loaders, or of one.

        `slots` are the slots of each loader's batches, empty if there is one loader. `joined` says whether
        the loaders' batches are joined into one. If `slots` or `joined` changed, the stage's graphs and
        figures are discarded.
        """
        if (slots, joined) == (self._tasks[name], self._joined[name]):
            return
        self._tasks[name], self._joined[name] = slots, joined
        self._splitters = {key: splitter for key, splitter in self._splitters.items() if key[0] != name}
        for metric in self._metrics[name]:
            metric.restart()
        self.stages[name] = self.new_stage(name, self._metrics[name])

    # ---- stages

    def new_stage(self, name: str, metrics: Sequence[StageMetric]) -> Stage:
        """Return a new stage with these metrics.

        Raises SpecError if a handler blends losses that training keeps apart.
        """
        training, model = name == TRAIN, self.model
        hooks, separation = (self.hooks, self._separation()) if training else (NO_HOOKS, TOGETHER)
        lacking = self._lacking(name)
        spec = with_optional(self.spec if training else self.spec.evaluation, lacking)
        optional = {coverage(label): lacking & {label} for label in spec.labels}
        optional.update({term.key: term.optional for term in spec.metric_terms})
        for metric in metrics:
            metric.term = replace(metric.term, optional=optional[metric.term.key])
        changes_objective = hooks.active("change_objective")
        network = Network(
            model.net,
            spec,
            name,
            # handlers that change the objective may compute gradients first; a graph with planned memory
            # would then no longer write to the parameters' gradients
            not changes_objective,
            model.precision,
            hooks.change_outputs if hooks.active("change_outputs") else None,
            self.trainers.frozen if training else None,
            model.log_once,
        )
        refuse_blends(hooks, separation)
        stage = Stage(
            network,
            metrics,
            model.contexts,
            training=training,
            world=self.world,
            changes_objective=changes_objective,
            dtype=model.dtype,
            finite_only=not hooks.handle_non_finite,
            separation=separation,
            shares=self.windows.shares if training else None,
        )
        if training:
            stage.needs_outputs = self._needs_outputs
            if self.loaders is not None:
                stage.figures.means.append(LoaderCounts(self.loaders))
        return stage

    def begin_stage(self, name: str, batch: Batch, problems: Sequence[Problem] = ()) -> None:
        """Prepare a stage for its first batch: all ranks get the first rank's parameters.

        `problems` are those already found on this rank; they are raised if other ranks would wait for it.
        """

        def run_once(batch: Batch) -> None:
            with batch.contexts[0]:
                Network(self.model.net, self.stages[name].spec, name)(batch.slots[0])

        self.shared.begin_stage(batch, run_once, problems)

    def _lacking(self, name: str) -> frozenset[str]:
        """Return the slots that some of a stage's batches lack."""
        if self._joined[name]:
            return frozenset()
        spec = self.spec if name == TRAIN else self.spec.evaluation
        slots = [set(names.values()) for names in self._tasks[name].values()]
        return frozenset(slot for names in slots for slot in spec.slot_names if slot not in names)

    def _separation(self) -> LossSeparation:
        """Return how training keeps losses apart; they are never both balanced and bound to trainers."""
        if self.balancer is not None:
            return replace(self.balancer.separation, updated=self._updated)
        if not any(term.trainers for term in self.spec.terms):
            return TOGETHER
        return LossSeparation(APART, bound=partial(bound_parameters, self.spec.terms, self.trainers))

    def _updated(self) -> frozenset[str]:
        """Return MXNet's names of the parameters that trainers update."""
        return frozenset(self.model.parameters[name].name for name in self.trainers.updated())

    # ---- batch splitters

    @contextmanager
    def samples_along(self, batch_axis: int) -> Iterator[None]:
        """Split batches along another axis within the block; raises ValueError if it is not a valid axis."""
        before, self.batch_axis = self.batch_axis, checked_value("batch_axis", batch_axis, FromZero)
        try:
            yield
        finally:
            self.batch_axis = before

    def splitter(self, name: str, labels: bool = True, changes: bool = True) -> AnySplitter:
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
        self._split_specs[name] = stage.spec
        same = [each for each, spec in self._split_specs.items() if spec is stage.spec]
        return BatchSplitter(
            stage.spec,
            self.model.contexts,
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
