"""Makes the stages of an engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Sequence

from ...distributed import World
from ...events import TrainingHooks
from ...spec import TaskSpec
from ...spec.missing import coverage
from ...spec.task_slots import with_optional
from ...stages import TRAIN
from ..execution.changed_objective import refuse_blends
from ..execution.frozen import Frozen
from ..execution.loss_separation import LossSeparation
from ..execution.loss_weights import Shares
from ..execution.network import Network
from ..execution.stage import Stage
from ..metrics.stage_metric import StageMetric
from ..model.model import Model


def make_stage(
    name: str,
    model: Model,
    spec: TaskSpec,
    metrics: Sequence[StageMetric],
    lacking: frozenset[str],
    hooks: TrainingHooks,
    separation: LossSeparation,
    world: World,
    frozen: Frozen | None,
    shares: Shares | None,
) -> Stage:
    """Return a stage for a spec and metrics; `lacking` are the slots that some of its batches lack.

    `hooks` call the handlers that change a training step, `separation` says which losses the stage keeps
    apart, `frozen` knows what is frozen, and `shares` is as for :class:`LossScaler`; a stage that evaluates
    has none of them. Raises SpecError if a handler blends losses that `separation` keeps apart.
    """
    spec = with_optional(spec, lacking)
    optional = {coverage(label): lacking & {label} for label in spec.labels}
    optional.update({term.key: term.optional for term in spec.metric_terms})
    for metric in metrics:
        metric.term = replace(metric.term, optional=optional[metric.term.key])
    changes_objective = hooks.active("change_objective")
    change_outputs = hooks.change_outputs if hooks.active("change_outputs") else None
    # handlers that change the objective may compute gradients first; a graph with planned memory would then
    # no longer write to the parameters' gradients
    plans_memory = not changes_objective
    network = Network(
        model.net, spec, name, plans_memory, model.precision, change_outputs, frozen, model.log_once
    )
    refuse_blends(hooks, separation)
    return Stage(
        network,
        metrics,
        model.contexts,
        training=name == TRAIN,
        world=world,
        changes_objective=changes_objective,
        dtype=model.dtype,
        finite_only=not hooks.handle_non_finite,
        separation=separation,
        shares=shares,
    )
