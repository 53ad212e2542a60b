"""What an estimator of a Gluon net runs with on MXNet: the model, trainers, and stages with their figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from .. import engines
from ..balance.balancers import Balancer
from ..distributed import ALONE, World
from ..distributed.log_once import LogOnce
from ..engines import Setup
from ..handlers.dispatcher import TrainingHooks
from ..handlers.state import RunState
from ..spec import TaskSpec
from ..spec.terms import Term
from ..utils.errors import Problem
from ..utils.stages import TRAIN
from .balance import loss_separation, make_balancer
from .compat import mx
from .data.added_slots import ValueWeights
from .data.batch import Batch
from .data.splitter import BatchSplitter
from .metrics.stage_metric import StageMetric, declared_metrics
from .model import Model, SharedParameters, default_spec
from .optim.preserve_state import kept_statistics
from .step.loss_graph import APART, TOGETHER, LossSeparation
from .step.network import Network
from .step.stage import Stage, StepResult
from .step.weights import as_number
from .trainers import Trainers, bound_parameters


class Session(engines.Session):
    """Runs batches with MXNet; `metrics` are by default the declared ones."""

    backward: Any = staticmethod(StepResult.differentiate)  # of a batch's objectives, on all devices
    batch_splitter, value_weights = BatchSplitter, ValueWeights

    def __init__(
        self,
        model: Model,
        trainers: Trainers,
        spec: TaskSpec,
        state: RunState,
        log_once: Callable[[str], None],
        metrics: Mapping[str, Sequence[StageMetric]] | None = None,
        balancer: Balancer | None = None,
        world: World = ALONE,
    ) -> None:
        metrics = declared_metrics(spec) if metrics is None else metrics
        super().__init__(model, trainers, spec, state, log_once, metrics, balancer, world)
        self.shared = SharedParameters(world, model.parameters, trainers.frozen.statistics)
        self.restart()

    @classmethod
    def of(cls, setup: Setup, state: RunState, log_once: LogOnce) -> Session:
        """Return what an estimator trains with; raises what the estimator's constructor raises."""
        spec = setup.spec if isinstance(setup.spec, TaskSpec) else default_spec(setup.spec, log_once)
        model = Model(setup.net, spec, setup.context, setup.initializer, setup.precision, log_once)
        trainers = Trainers(setup.trainers, setup.frozen, model, log_once, setup.accumulate, setup.world)
        balancer = make_balancer(setup.balance, spec, model.contexts[0], setup.world, model.parameters)
        return cls(model, trainers, spec, state, log_once, balancer=balancer, world=setup.world)

    def added(self) -> Any:
        """Return what the trainers have added up."""
        return self.trainers.get().added_gradients

    def normalizer(self, term: Term, batch: Any) -> float:
        """Return this rank's summand of a loss's normalizer; may wait for the device."""
        return as_number(self.stages[TRAIN].weights.normalizer(term, batch))

    def again(self, batch: Batch) -> StepResult:
        """Compute the objectives of a batch once more, without gradients; running statistics stay."""
        with kept_statistics(self.model.parameters.values()):
            return self.stages[TRAIN].again(batch, self.state)

    def discard(self) -> None:
        """Discard graphs: the net may have changed."""
        self.model.discard_static_graphs()
        self.trainers.frozen.forget()

    def new_stage(
        self, name: str, spec: TaskSpec, metrics: Sequence[StageMetric], hooks: TrainingHooks
    ) -> Stage:
        """Return a new stage; raises SpecError if a handler blends losses that training keeps apart."""
        training, model = name == TRAIN, self.model
        separation = self._separation() if training else TOGETHER
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
        if blending := hooks.blending:
            self.refuse_apart(
                f"{blending} replaces a share of losses by others, which would",
                "not count as those of a task",
                "train the parameters of all trainers",
            )
        return Stage(
            network,
            metrics,
            model.contexts,
            training=training,
            world=self.world,
            changes_objective=changes_objective,
            dtype=model.dtype,
            finite_only=not hooks.handle_non_finite,
            separation=separation,
            divisors=self.windows.shares if training else None,
        )

    def begin_stage(self, name: str, batch: Batch, problems: Sequence[Problem] = ()) -> None:
        """Prepare a stage for its first batch: all ranks get the first rank's parameters.

        `problems` are those already found on this rank; they are raised if other ranks would wait for it.
        """

        def run_once(batch: Batch) -> None:
            if any(parameter._deferred_init for parameter in self.model.parameters.values()):
                # in evaluation mode, else running statistics would count the batch twice
                with mx.autograd.pause(train_mode=False), batch.contexts[0]:
                    Network(self.model.net, self.stages[name].spec, name)(batch.slots[0])

        self.shared.begin_stage(batch, problems, run_once)

    def _separation(self) -> LossSeparation:
        """Return how training keeps losses apart; they are never both balanced and bound to trainers."""
        if self.balancer is not None:
            return loss_separation(self.balancer, self._updated)
        if not any(term.trainers for term in self.spec.terms):
            return TOGETHER
        return LossSeparation(APART, bound=partial(bound_parameters, self.spec.terms, self.trainers))

    def _updated(self) -> frozenset[str]:
        """Return MXNet's names of the parameters that trainers update."""
        return frozenset(self.model.parameters[name].name for name in self.trainers.updated())
