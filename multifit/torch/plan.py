"""Make the plan: the facts found by a dry run, as data that can be printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..checks import describe
from ..checks.trainers import freezing, listing
from ..log_once import LogOnce
from ..spec.plan import Layer, Plan, StagePlan, TrainerPlan, stage_plan
from ..stages import EVALUATE, TRAIN
from .batch import Batch
from .check import DryRun, preserved, without_gradient
from .engine import Engine
from .step import Stage, StepResult


def make_plan(engine: Engine, run: DryRun, log_once: LogOnce, trained: bool, layers: bool = False) -> Plan:
    """Describe devices, stages and trainers after a dry run; warn of mistakes that do not stop training.

    Such mistakes are values for which a net or a loss was hardly meant, and parameters without a gradient.
    Whether the batch will be `trained` on makes no difference. With `layers`, the net runs once more.
    """
    for message in dict.fromkeys([*run.doubts, *_without_gradient(engine, run)]):
        log_once.warning(message)
    trained_on, evaluated = run.results[TRAIN], run.results[EVALUATE]
    balancer = engine.balancer
    balance = "" if balancer is None else balancer.tasks.described(balancer.method)
    return Plan(
        devices=tuple(map(str, engine.model.contexts)),
        samples=run.train.batch.samples,
        train=_stage(engine.stages[TRAIN], trained_on),
        evaluate=_stage(engine.stages[EVALUATE], evaluated) if evaluated else None,
        trainers=tuple(_trainer(engine, run, name) for name in engine.trainers.get()),
        frozen=tuple(engine.trainers.not_updated()),
        frozen_statistics=tuple(engine.trainers.frozen_statistics()),
        notices=tuple(log_once),
        precision=engine.model.precision.name,
        loaders=tuple(run.loaders),
        balance="; ".join(filter(None, [balance, run.shared])),
        layers=tuple(_layers(engine, run.train.batch)) if layers else (),
    )


def _layers(engine: Engine, batch: Batch) -> Iterator[Layer]:
    """Call the net once more, as it is written, and yield what each of its modules returns."""
    stage, returned, counted = engine.stages[TRAIN], dict[nn.Module, str](), set[nn.Parameter]()
    modules = dict(engine.model.net.named_modules())

    def note(module: nn.Module, _: Any, output: Any) -> None:
        returned.setdefault(module, describe.structure(output))

    hooks = [module.register_forward_hook(note) for module in modules.values()]
    try:
        with preserved(engine), torch.no_grad(), torch.compiler.set_stance("force_eager"):
            stage.bound(batch.slots)
    finally:
        for hook in hooks:
            hook.remove()
    for name, module in modules.items():
        own = set(module.parameters(recurse=False)) - counted
        counted |= own
        if name or own:
            size = sum(parameter.numel() for parameter in own if not is_lazy(parameter))
            yield Layer(name or "net", type(module).__name__, returned.get(module, "-"), size)


def _stage(stage: Stage, results: Sequence[StepResult]) -> StagePlan:
    """Describe a stage by its first batch; slots that it lacks, by the first batches of other loaders."""
    declared = {metric.key for metric in stage.spec.metric_terms}
    metrics = [(m.term.key, m.names, m.place) for m in stage.figures.metrics if m.term.key in declared]
    outputs = _first(result.outputs for result in results)
    slots = _first(result.batch.slots for result in results)
    parts = _first(result.named_parts() for result in results)
    return stage_plan(stage.spec, outputs, slots, parts, metrics, stage.describe())


def _first(dicts: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return, for each name, shape and dtype of the first tensor that is not None."""
    found: dict[str, str] = {}
    for tensors in dicts:
        found.update({n: describe.array(t) for n, t in tensors.items() if t is not None and n not in found})
    return found


def _trainer(engine: Engine, run: DryRun, name: str) -> TrainerPlan:
    trainers, handle = engine.trainers, engine.trainers[name]
    updated = trainers.updated(name)
    losses: tuple[str, ...] = ()
    if len(trainers) > 1 and len(engine.spec.terms) > 1:
        terms = [term for term in engine.spec.terms if name in (term.trainers or trainers)]
        losses = tuple(t.key for t in terms if run.reached.get(t.key, frozenset()) & updated.keys())
    return TrainerPlan(
        name,
        type(handle.optimizer).__name__,
        float(handle.learning_rate),
        tuple(updated),
        sum(parameter.numel() for parameter in updated.values()),
        trainers.clip_norms.get(name),
        None,
        losses,
        *trainers.rhythms.get(name, ()),
    )


def _without_gradient(engine: Engine, run: DryRun) -> Iterator[str]:
    """Yield a warning if a trainer updates parameters that outputs depend on, but no loss's gradient reaches.

    Their gradient is None, so that they keep their values. Fits with handlers that change outputs or
    objectives are skipped, as these may train any parameter.
    """
    if engine.hooks.active("change_objective", "change_outputs"):
        return
    if still := without_gradient(engine, run):
        others = [name for name in engine.model.parameters if name not in still]
        yield (
            f"no loss's gradient reaches {listing(still)}, so nothing trains them: detach() or no_grad() "
            "stops it, or only outputs without a loss depend on them; pass "
            f"{freezing(still, others)}, or give them a loss"
        )
