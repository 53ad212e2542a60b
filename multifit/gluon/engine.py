"""What runs an estimator's batches: a model, its trainers, and the stages of training and evaluating."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Callable, Iterator, Mapping, Sequence, Union

from ..arguments import FromZero, checked_value
from ..distributed import ALONE, World
from ..errors import Problem
from ..events import TrainingHooks
from ..sampling import TaskLoaders
from ..spec import TaskSpec
from ..spec.missing import coverage
from ..spec.task_slots import TaskSlots, with_optional
from ..stages import STAGES, TRAIN
from ..state import RunState
from .balance.make import AnyBalancer
from .compat import mx
from .data.batch_splitter import BatchSplitter, SlotSignature
from .data.batches import Batch
from .data.in_use import LoadersInUse
from .data.missing_labels import KnownLabels
from .data.task_splitter import TaskSplitter
from .distributed.joint_gradients import JointGradients
from .distributed.parameters import SharedParameters
from .distributed.reader import Reader
from .execution.balanced import NOTHING_BALANCED, Balanced
from .execution.changed_objective import refuse_blends
from .execution.loss_graph import APART
from .execution.network import Network
from .execution.stage import Stage
from .metrics import copy_metric
from .metrics.declared import declared_metrics
from .metrics.loader_counts import LoaderCounts
from .metrics.stage_metric import StageMetric
from .model.bound_losses import bound_parameters
from .model.model import Model
from .model.model_trainers import ModelTrainers

AnySplitter = Union[BatchSplitter, TaskSplitter]


class Engine:
    """A model and its trainers, with what is made new for every fit: stages, graphs and batch splitters.

    `spec` says what is routed where; weights that are functions are called with `state`. `metrics` are those
    of each stage, by default the declared ones. `balancer` weighs the losses of training, if there is one.
    `world` are the ranks that train together.

    `stages` are named "train" and "evaluate". `loaders` are those that train, if they are several; they are
    set before :meth:`read_tasks`. `hooks` are what handlers change while training, None if nothing.
    `batch_axis` is the axis of the samples in all slots. `signatures` are the shapes and dtypes of each
    stage's batches, for exporting; `known_labels` are the forms of labels that batches may lack, from the
    last batch that had them. `readers` read the loaders of each stage; `gradients` and `shared` keep
    the ranks together.
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
        self.signatures: dict[str, list[SlotSignature]] = {name: [] for name in STAGES}
        self.world, self.gradients = world, JointGradients(world)
        in_use = LoadersInUse()
        self.readers = {name: Reader(world, in_use) for name in STAGES}
        self.shared = SharedParameters(world, model.parameters)
        self.restart()

    @property
    def balance(self) -> Any:
        """The method of balancing, or None."""
        return None if self.balancer is None else self.balancer.method

    def restart(self, hooks: TrainingHooks | None = None) -> None:
        """Discard all graphs and figures, as at the beginning of a fit: the net may have changed.

        `hooks` are what handlers change while training. Raises SpecError if the net has other parameters than
        when the model was made.
        """
        self.model.check_parameters()
        self.hooks, self.loaders = hooks, None
        self.further_checks: list[Callable[[Any], None]] = []  # of a first batch, as its loader yielded it
        self.known_labels: dict[str, KnownLabels] = {name: {} for name in STAGES}
        for metric in (metric for metrics in self._metrics.values() for metric in metrics):
            metric.restart()
        self._splitters: dict[Any, AnySplitter] = {}
        self._tasks: dict[str, Mapping[str, TaskSlots]] = {name: {} for name in STAGES}
        self._joined = dict.fromkeys(STAGES, False)
        self.stages = {name: self.new_stage(name, metrics) for name, metrics in self._metrics.items()}

    def read_tasks(self, name: str, slots: Mapping[str, TaskSlots], joined: bool = False) -> None:
        """Prepare a stage for batches of several loaders, which have these slots; for one if there are none.

        `joined` says whether they make one batch. If any of it is new, the stage's graphs and figures are
        discarded.
        """
        if (slots, joined) == (self._tasks[name], self._joined[name]):
            return
        self._tasks[name], self._joined[name] = slots, joined
        for metric in self._metrics[name]:
            metric.restart()
        self._splitters = {key: value for key, value in self._splitters.items() if key[0] != name}
        self.stages[name] = self.new_stage(name, self._metrics[name])

    def new_stage(self, name: str, metrics: list[StageMetric]) -> Stage:
        """Return a new stage with these metrics."""
        training = name == TRAIN
        spec = self.spec if training else self.spec.evaluation
        lacking = self._lacking(name, spec)
        spec = with_optional(spec, lacking)
        optional = {coverage(label): lacking & {label} for label in spec.labels}
        optional.update({term.key: term.optional for term in spec.metric_terms})
        for metric in metrics:
            metric.term = replace(metric.term, optional=optional[metric.term.key])
        hooks = self.hooks if training else None
        changes_objective = hooks is not None and hooks.active("change_objective")
        change_outputs = hooks.change_outputs if hooks and hooks.active("change_outputs") else None
        # a planned graph's gradients would be detached from the parameters by those of a changed objective
        repeats = not changes_objective
        network = Network(self.model.net, spec, name, repeats, self.model.precision, change_outputs)
        finite_only = hooks is None or not hooks.handle_non_finite
        dtype, contexts = self.model.dtype, self.model.contexts
        balanced = self._balanced() if training else NOTHING_BALANCED
        if hooks is not None:
            refuse_blends(hooks, balanced)
        stage = Stage(
            network, metrics, contexts, training, self.world, changes_objective, dtype, finite_only, balanced
        )
        if training and self.loaders is not None:
            stage.figures.means.append(LoaderCounts(self.loaders))
        return stage

    def _balanced(self) -> Balanced:
        """Return what training keeps apart; losses are not both balanced and bound to trainers."""
        if self.balancer is not None:
            return replace(self.balancer.balanced, moved=self._moved)
        if not any(term.trainers for term in self.spec.terms):
            return NOTHING_BALANCED
        return Balanced(APART, bound=partial(bound_parameters, self.spec.terms, self.trainers))

    def _moved(self) -> frozenset[str]:
        """Return MXNet's names of the parameters that trainers move."""
        return frozenset(self.model.parameters[name].name for name in self.trainers.moved())

    @contextmanager
    def samples_along(self, batch_axis: int) -> Iterator[None]:
        """Split batches along another axis within the block; raises ValueError if there cannot be one."""
        before, self.batch_axis = self.batch_axis, checked_value("batch_axis", batch_axis, FromZero)
        try:
            yield
        finally:
            self.batch_axis = before

    def splitter(self, name: str, labels: bool = True, changes: bool = True) -> AnySplitter:
        """Return the batch splitter of a stage.

        With ``labels=False``, batches may lack labels; with ``changes=False``, no handler changes them.
        """
        key = (name, labels, changes, self.batch_axis)
        if key not in self._splitters:
            make = partial(self._new_splitter, name, labels, changes)
            tasks = self._tasks[name] if labels else {}
            self._splitters[key] = TaskSplitter(self.stages[name].spec, tasks, make) if tasks else make()
        return self._splitters[key]

    def _new_splitter(
        self, name: str, labels: bool, changes: bool, own: TaskSlots | None = None
    ) -> BatchSplitter:
        hooks = self.hooks if name == TRAIN and changes else None
        carried = self.stages[name].carried
        return BatchSplitter(
            self.stages[name].spec,
            self.model.contexts,
            self._log_once,
            labels,
            self.batch_axis,
            partial(hooks.change_batch, batch_axis=self.batch_axis)
            if hooks and hooks.active("change_batch")
            else None,
            self.signatures[name] if self.batch_axis == 0 else None,
            self.model.dtype,
            self.readers[name].current,
            own,
            None if carried is None else carried.fill_in,
            self.known_labels[name],
        )

    def _lacking(self, name: str, spec: TaskSpec) -> frozenset[str]:
        """Return the slots that some of a stage's batches lack."""
        if self._joined[name]:
            return frozenset()
        slots = [set(own.values()) for own in self._tasks[name].values()]
        return frozenset(slot for own in slots for slot in spec.slot_names if slot not in own)

    def begin_stage(self, name: str, batch: Batch, problems: Sequence[Problem] = ()) -> None:
        """Prepare a stage for its first batch: with several ranks, all get the first one's parameters.

        `problems` are known already; they are raised if other ranks would wait for this one.
        """
        run = partial(_run_once, self.model.net, self.stages[name].spec, name)
        self.shared.begin_stage(batch, run, problems)

    def wait(self) -> None:
        """Wait until the devices have done all their work."""
        mx.nd.waitall()

    def fork(self, state: RunState, balancer: AnyBalancer | None = None) -> Engine:
        """Return an engine for the same model and trainers with metrics, figures and graphs of its own.

        What it learns about the shapes of batches is shared. It has another `balancer`, if one is given.
        """
        metrics = {
            name: [StageMetric(metric.term, copy_metric(metric.metric)) for metric in stage_metrics]
            for name, stage_metrics in self._metrics.items()
        }
        if balancer is None and self.balancer is not None:
            balancer = self.balancer.fork()
        fork = Engine(
            self.model, self.trainers, self.spec, state, self._log_once, metrics, balancer, self.world
        )
        fork.signatures, fork.shared = self.signatures, self.shared
        return fork


def _run_once(net: Any, spec: TaskSpec, name: str, batch: Batch) -> None:
    with batch.contexts[0]:
        Network(net, spec, name)(batch.slots[0])
