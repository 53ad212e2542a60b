"""Runs an estimator's batches: holds a model, its trainers, and the stages of training and evaluation."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Callable, Iterator, Mapping, Sequence

from ...arguments import FromZero, checked_value
from ...distributed import ALONE, World
from ...errors import Problem
from ...events import NO_HOOKS, TrainingHooks
from ...sampling import TaskLoaders
from ...spec import TaskSpec
from ...spec.task_slots import TaskSlots
from ...stages import STAGES, TRAIN
from ...state import RunState
from ..balance.make import AnyBalancer
from ..compat import mx
from ..data.batches import Batch
from ..data.in_use import LoadersInUse
from ..distributed.joint_gradients import JointGradients
from ..distributed.parameters import SharedParameters
from ..distributed.reader import Reader
from ..execution.loss_graph import APART
from ..execution.loss_separation import TOGETHER, LossSeparation
from ..execution.network import Network
from ..execution.stage import Stage
from ..metrics import copy_metric
from ..metrics.declared import declared_metrics
from ..metrics.loader_counts import LoaderCounts
from ..metrics.stage_metric import StageMetric
from ..model.bound_losses import bound_parameters
from ..model.model import Model
from ..model.model_trainers import ModelTrainers
from .make_stage import make_stage
from .splitters import AnySplitter, Splitters
from .windows import Windows


class Engine:
    """A model and its trainers, and what is rebuilt for every fit: stages, graphs and batch splitters.

    `spec` says what is routed where. Loss weights that are functions are called with `state`. `metrics` are
    the metrics of each stage, by default the declared ones. `balancer` weighs the losses of training, if
    there is one. `world` holds the ranks that train together.

    `stages` are named "train" and "evaluate". `loaders` is set, before :meth:`read_tasks`, if several
    loaders train. `hooks` call the handlers that change a training step. `batch_axis` is the axis of the
    samples in all slots. `readers` read the loaders of each stage, and `splitters` turn their batches into
    named arrays. `gradients` adds up the ranks' gradients, and `shared` keeps their parameters equal.
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
        in_use = LoadersInUse()
        self.readers = {name: Reader(world, in_use) for name in STAGES}
        self.splitters = Splitters(model, self.readers, log_once)
        self.shared = SharedParameters(world, model.parameters, trainers.frozen.statistics)
        self.windows = Windows(self)
        self.restart()

    @property
    def balance(self) -> Any:
        """The method of balancing, or None."""
        return None if self.balancer is None else self.balancer.method

    def restart(self, hooks: TrainingHooks = NO_HOOKS) -> None:
        """Discard all graphs and figures, as at the beginning of a fit: the net may have changed.

        `hooks` call the handlers that change a training step. Raises SpecError if the net no longer has the
        parameters that it had when the model was made.
        """
        self.model.check_parameters()
        self.model.static_graphs.discard_stale()
        self.trainers.frozen.forget()
        self.hooks, self.loaders = hooks, None
        for metric in (metric for metrics in self._metrics.values() for metric in metrics):
            metric.restart()
        self.splitters.restart()
        self.windows.begin()
        self.stages = {name: self.new_stage(name, metrics) for name, metrics in self._metrics.items()}

    def read_tasks(self, name: str, slots: Mapping[str, TaskSlots], joined: bool = False) -> None:
        """Prepare a stage for the batches of several loaders, or of one.

        `slots` are the slots of each loader's batches, empty if there is one loader. `joined` says whether
        the loaders' batches are joined into one. If `slots` or `joined` changed, the stage's graphs and
        figures are discarded.
        """
        if self.splitters.read_tasks(name, slots, joined):
            for metric in self._metrics[name]:
                metric.restart()
            self.stages[name] = self.new_stage(name, self._metrics[name])

    def new_stage(self, name: str, metrics: list[StageMetric]) -> Stage:
        """Return a new stage with these metrics."""
        training = name == TRAIN
        spec = self.spec if training else self.spec.evaluation
        lacking = self.splitters.lacking(name, spec)
        hooks, separation = (self.hooks, self._separation()) if training else (NO_HOOKS, TOGETHER)
        frozen, shares = (self.trainers.frozen, self.windows.shares) if training else (None, None)
        stage = make_stage(
            name, self.model, spec, metrics, lacking, hooks, separation, self.world, frozen, shares
        )
        if training and self.loaders is not None:
            stage.figures.means.append(LoaderCounts(self.loaders))
        return stage

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

    @contextmanager
    def samples_along(self, batch_axis: int) -> Iterator[None]:
        """Split batches along another axis within the block; raises ValueError if it is not a valid axis."""
        before, self.batch_axis = self.batch_axis, checked_value("batch_axis", batch_axis, FromZero)
        try:
            yield
        finally:
            self.batch_axis = before

    def splitter(self, name: str, labels: bool = True, changes: bool = True) -> AnySplitter:
        """Return the batch splitter of a stage.

        With ``labels=False``, batches may lack labels; with ``changes=False``, handlers do not change them.
        """
        hooks = self.hooks if name == TRAIN and changes else NO_HOOKS
        return self.splitters.get(self.stages[name], hooks, labels, self.batch_axis)

    def begin_stage(self, name: str, batch: Batch, problems: Sequence[Problem] = ()) -> None:
        """Prepare a stage for its first batch: all ranks get the first rank's parameters.

        `problems` are those already found on this rank; they are raised if other ranks would wait for it.
        """
        run = partial(_run_once, self.model.net, self.stages[name].spec, name)
        self.shared.begin_stage(batch, run, problems)

    def wait(self) -> None:
        """Wait until the devices have done all their work."""
        mx.nd.waitall()

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
        fork.splitters.signatures, fork.shared = self.splitters.signatures, self.shared
        return fork


def _run_once(net: Any, spec: TaskSpec, name: str, batch: Batch) -> None:
    with batch.contexts[0]:
        Network(net, spec, name)(batch.slots[0])
