"""The plan: what a dry run established, as data that can be printed."""

from __future__ import annotations

from typing import Any, Iterator, Protocol

import numpy as np

from ...plan import Plan, StagePlan, TrainerPlan, stage_plan
from ..engine import Engine
from ..execution.result import StepResult
from ..execution.stage import Stage
from ..metrics.stage_metric import Place
from .dry_run import DryRun
from .trainer_losses import losses_by_trainer, opposing_losses

PLACES = {Place.DEVICE: "summed on the device", Place.HOST: "updated batch by batch"}


class Notices(Protocol):
    """What was logged so far, each message once."""

    def __iter__(self) -> Iterator[str]: ...
    def warning(self, message: str) -> None:
        """Log a warning, unless it was logged before."""


def make_plan(engine: Engine, run: DryRun, notices: Notices, trained: bool) -> Plan:
    """Describe devices, stages and trainers after a dry run; warn of losses that pull against each other.

    Which losses reach which trainer is found with backward passes. They are left out if the batch will be
    `trained` on: MXNet computes other gradients in a second pass through Dropout.
    """
    for message in opposing_losses(engine, run.train):
        notices.warning(message)
    losses = {} if trained else losses_by_trainer(engine, run.train)
    return Plan(
        devices=tuple(map(str, engine.model.contexts)),
        samples=run.train.batch.samples,
        train=_stage(engine.stages["train"], run.train),
        evaluate=_stage(engine.stages["evaluate"], run.evaluate) if run.evaluate else None,
        trainers=tuple(_trainer(engine, name, losses.get(name, ())) for name in engine.trainers.get()),
        frozen=tuple(engine.trainers.frozen()),
        notices=tuple(notices),
        precision=engine.model.precision.name,
    )


def _stage(stage: Stage, result: StepResult) -> StagePlan:
    declared = {metric.key for metric in stage.spec.metric_terms}
    metrics = [
        (m.term.key, m.names, PLACES[m.place]) for m in stage.figures.metrics if m.term.key in declared
    ]
    arrays = result.outputs[0], result.batch.slots[0], result.parts[0]
    return stage_plan(stage.spec, *arrays, metrics, stage.describe())


def _trainer(engine: Engine, name: str, losses: tuple[str, ...]) -> TrainerPlan:
    trainers = engine.trainers.get()
    parameters = tuple(trainers.parameter_names[name])
    trainer = trainers[name]
    return TrainerPlan(
        name,
        type(trainer.optimizer).__name__,
        float(trainer.learning_rate),
        parameters,
        sum(_size(engine.model.parameters[parameter]) for parameter in parameters),
        trainers.clip_norms.get(name),
        trainers.calls(name),
        losses,
        *trainers.rhythms.get(name, ()),
    )


def _size(parameter: Any) -> int:
    # a parameter that a SymbolBlock loaded does not know its own shape
    return int(np.prod(parameter.shape or parameter.list_data()[0].shape))
