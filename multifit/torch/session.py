"""What an estimator of a PyTorch net runs with: the model, trainers, and stages with their figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .. import engines
from ..distributed.log_once import LogOnce
from ..engines import AUTO, Setup
from ..handlers.dispatcher import TrainingHooks
from ..handlers.state import RunState
from ..spec import TaskSpec
from ..spec.terms import Term
from ..utils.stages import TRAIN
from .balance import make_balancer
from .batch import Batch, BatchSplitter, ValueWeights
from .branch import backward
from .compiling import compiled
from .cuda_graphs import cuda_graphs
from .figures import StageFigures
from .model import Model, default_spec
from .ranks import SharedParameters
from .stage_metric import StageMetric, declared_metrics
from .step import Stage, StepResult
from .trainers import Trainers


class Session(engines.Session):
    """Runs batches with PyTorch; `compile` is as for :class:`multifit.MultiEstimator`."""

    batch_splitter, value_weights = BatchSplitter, ValueWeights

    def __init__(self, *parts: Any, compile: bool | str) -> None:
        super().__init__(*parts)
        self._compile = compile
        self._trainers_of = {term.key: term.trainers for term in self.spec.terms}
        self.shared = SharedParameters(self.world, self.model, self.trainers.frozen_statistics)
        self.restart()

    @classmethod
    def of(cls, setup: Setup, state: RunState, log_once: LogOnce) -> Session:
        """Return what an estimator trains with; raises what the estimator's constructor raises."""
        spec = setup.spec if isinstance(setup.spec, TaskSpec) else default_spec(setup.spec, log_once)
        if setup.initializer is not None:
            raise ValueError(
                "initializer= is for Gluon nets, whose parameters may have no values yet; initialise a "
                "module's with torch.nn.init, such as in net.apply(function)"
            )
        model = Model(setup.net, spec, setup.context, setup.precision, log_once)
        trainers = Trainers(setup.trainers, setup.frozen, model, log_once, setup.accumulate, setup.world)
        balancer = make_balancer(setup.balance, spec, model.device, setup.world, model.parameters)
        metrics = declared_metrics(spec)
        parts = model, trainers, spec, state, log_once, metrics, balancer, setup.world
        return cls(*parts, compile=setup.compile)

    def normalizer(self, term: Term, batch: Batch) -> float:
        """Return this rank's summand of a loss's normalizer; waits for the device."""
        return float(self.stages[TRAIN].objective.normalizer(term, batch))

    def backward(self, result: StepResult) -> None:
        """Add the gradients of a batch's objectives, each to those of the trainers that it is bound to."""
        groups: dict[tuple[str, ...], list[torch.Tensor]] = {}  # by the trainers that losses are bound to
        for key, each in result.objectives.items():
            if each.requires_grad:  # a constant has nothing to learn in this batch
                groups.setdefault(self._trainers_of.get(key, ()), []).append(each)
        bound = self.bound_parameters()  # handlers may have unfrozen some
        for number, (names, losses) in enumerate(groups.items(), 1):
            more, inputs = number < len(groups), bound.get(names)
            if inputs != []:  # a handler may have frozen all of them
                backward(losses, self.trainers.scale, retain_graph=more, inputs=inputs)
        result.detach()

    def again(self, batch: Batch) -> StepResult:
        """Compute the losses of a batch once more, without gradients; running statistics stay."""
        statistics = self.model.statistics
        kept = {name: each.clone() for name, each in statistics.items()}
        result = self.stages[TRAIN].run(batch, self.state, learns=False)
        with torch.no_grad():
            for name, each in statistics.items():
                each.copy_(kept[name])
        return result

    def discard(self) -> None:
        """Look at the modules anew: the net may have changed."""
        self.model.begin()

    def added(self) -> None:
        """Return None: the trainers' states hold how many batches were added up."""

    def bound_parameters(self) -> dict[tuple[str, ...], list[nn.Parameter] | None]:
        """Return, by the trainers to which losses are bound, their parameters; {} if no loss is bound."""
        names = set(self._trainers_of.values())
        if names == {()}:
            return {}
        of_trainer = {name: list(self.trainers.updated(name).values()) for name in self.trainers.get()}
        return {key: [p for name in key for p in of_trainer[name]] if key else None for key in names}

    def new_stage(
        self, name: str, spec: TaskSpec, metrics: Sequence[StageMetric], hooks: TrainingHooks
    ) -> Stage:
        """Return a new stage."""
        training, model = name == TRAIN, self.model
        means = list(self.balancer.means) if training and self.balancer is not None else []
        finite_only = not hooks.handle_non_finite
        figures = StageFigures(spec, metrics, model.device, finite_only=finite_only, means=means, stage=name)
        changes = any(hooks.active(what) for what in ("change_outputs", "change_objective"))
        compares = training and self.balancer is not None and self.balancer.compares
        compile = False if changes or compares else self._compile
        if compares and self._compile not in (False, AUTO):
            self._log_once.warning(
                f"compile={self._compile!r}: {type(self.balance).__name__} finds where tasks branch in "
                "autograd's graph of the net as it is, so training runs it operator by operator"
            )
        return Stage(
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
