"""Make the plan: the facts found by a dry run, as data that can be printed."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Sequence

import numpy as np

from ...checks import describe
from ...log_once import LogOnce
from ...spec.plan import Plan, TrainerPlan
from ...spec.stage_plan import StagePlan, stage_plan
from ...stages import EVALUATE, TRAIN
from ..engine import Engine
from ..execution.result import StepResult
from ..execution.stage import Stage
from ..metrics.stage_metric import Place, StageMetric
from .channels_last import channels_last
from .doubtful_values import doubtful_values
from .dry_run import DryRun
from .trainer_losses import losses_by_trainer, opposing_losses
from .unknown_indices import unknown_indices
from .without_gradient import without_gradient

PLACES = {
    Place.DEVICE: "summed on the device",
    Place.HOST: "summed outside of the graph",
    Place.UNDECIDED: "no loader has what it takes",
}


def make_plan(engine: Engine, run: DryRun, log_once: LogOnce, trained: bool) -> Plan:
    """Describe devices, stages and trainers after a dry run; warn of mistakes that do not stop training.

    Such mistakes are losses that pull against each other, values for which a loss or metric was hardly
    meant, and parameters without a gradient. Backward passes show which losses reach which trainer. They are
    left out if the batch will be `trained` on: MXNet computes wrong gradients in a second pass through
    Dropout.
    """
    trained_on, evaluated = run.results[TRAIN], run.results[EVALUATE]
    warnings = [m for each in trained_on for m in opposing_losses(engine, each)]
    warnings += [m for each in (*trained_on, *evaluated) for m in doubtful_values(each)]
    warnings += [m for each in trained_on for m in channels_last(each, engine.model.net)]
    warnings += without_gradient(engine)
    for stage, results in ((engine.stages[TRAIN], trained_on), (engine.stages[EVALUATE], evaluated)):
        for each in results:
            warnings += unknown_indices(each, stage.network, engine.model.parameters)
    for message in dict.fromkeys(warnings):
        log_once.warning(message)
    losses: dict[str, tuple[str, ...]] = {}
    for each in () if trained else trained_on:
        for name, reaching in losses_by_trainer(engine, each).items():
            losses[name] = tuple(dict.fromkeys([*losses.get(name, ()), *reaching]))
    return Plan(
        devices=tuple(map(str, engine.model.contexts)),
        samples=run.train.batch.samples,
        train=_stage(engine.stages[TRAIN], trained_on),
        evaluate=_stage(engine.stages[EVALUATE], evaluated) if evaluated else None,
        trainers=tuple(_trainer(engine, name, losses.get(name, ())) for name in engine.trainers.get()),
        frozen=tuple(engine.trainers.not_updated()),
        frozen_statistics=tuple(engine.trainers.frozen.statistics()),
        notices=tuple(log_once),
        precision=engine.model.precision.name,
        loaders=tuple(run.loaders),
        balance="" if engine.balancer is None else engine.balancer.tasks.described(engine.balancer.method),
    )


def _stage(stage: Stage, results: Sequence[StepResult]) -> StagePlan:
    """Describe a stage by its first batch; slots that it lacks, by the first batches of other loaders."""
    declared = {metric.key for metric in stage.spec.metric_terms}
    metrics = [(m.term.key, m.names, _place(m)) for m in stage.figures.metrics if m.term.key in declared]
    outputs = _first(result.outputs[0] for result in results)
    slots = _first(result.batch.slots[0] for result in results)
    parts = _first(result.parts[0] for result in results)
    return stage_plan(stage.spec, outputs, slots, parts, metrics, stage.describe())


def _place(metric: StageMetric) -> str:
    if metric.keeps:
        return "computed from the whole pass"
    return PLACES[metric.place] if metric.is_whole else "updated batch by batch"


def _first(dicts: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return, for each name, shape and dtype of the first array that is not None."""
    found: dict[str, str] = {}
    for arrays in dicts:
        new = {name: a for name, a in arrays.items() if a is not None and name not in found}
        found.update({name: describe.array(a) for name, a in new.items()})
    return found


def _trainer(engine: Engine, name: str, losses: tuple[str, ...]) -> TrainerPlan:
    trainers = engine.trainers.get()
    updated, trainer = trainers.updated(name), trainers[name]
    return TrainerPlan(
        name,
        type(trainer.optimizer).__name__,
        float(trainer.learning_rate),
        tuple(updated),
        sum(map(_size, updated.values())),
        trainers.clip_norms.get(name),
        trainers.calls(name),
        losses,
        *trainers.rhythms.get(name, ()),
    )


def _size(parameter: Any) -> int:
    # a parameter that a SymbolBlock loaded does not know its own shape
    return int(np.prod(parameter.shape or parameter.list_data()[0].shape))
