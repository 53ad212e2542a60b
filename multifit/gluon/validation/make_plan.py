"""Make the plan: the facts found by a dry run, as data that can be printed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...checks import describe
from ...checks.trainers import freezing, listing
from ...engines import DryRun
from ...log_once import LogOnce
from ...spec.plan import Layer, Plan, StagePlan, TrainerPlan, stage_plan
from ...spec.terms import by_reference
from ...stages import EVALUATE, TRAIN
from ..compat import mx
from ..data.batch import Batch
from ..engine import Engine
from ..execution.blocks import blocks_of, run_by_python
from ..execution.loss_calls import call_loss
from ..execution.network import Network
from ..execution.result import StepResult
from ..execution.stage import Stage
from ..metrics.stage_metric import Place, StageMetric
from ..optim.preserve_state import kept_statistics, preserve_state
from .doubtful_values import channels_last, doubtful_values
from .dry_run import without_gradient

PLACES = {
    Place.DEVICE: "summed on the device",
    Place.HOST: "summed outside of the graph",
    Place.UNDECIDED: "no loader has what it takes",
}


def make_plan(engine: Engine, run: DryRun, log_once: LogOnce, trained: bool, layers: bool = False) -> Plan:
    """Describe devices, stages and trainers after a dry run; warn of mistakes that do not stop training.

    Such mistakes are values for which a net, a loss or a metric was hardly meant, and parameters without a
    gradient. Backward passes show which losses reach which trainer. They are left out if the batch will be
    `trained` on: MXNet computes wrong gradients in a second pass through Dropout.
    """
    trained_on, evaluated = run.results[TRAIN], run.results[EVALUATE]
    warnings = [m for each in (*trained_on, *evaluated) for m in doubtful_values(each)]
    warnings += [m for each in trained_on for m in channels_last(each, engine.model.net)]
    warnings += _without_gradient(engine)
    for message in dict.fromkeys(warnings):
        log_once.warning(message)
    losses: dict[str, tuple[str, ...]] = {}
    for each in () if trained else trained_on:
        for name, reaching in _losses_by_trainer(engine, each).items():
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
        layers=tuple(_layers(engine, run.train.batch)) if layers else (),
    )


def _layers(engine: Engine, batch: Batch) -> Iterator[Layer]:
    """Call the net once more, without the graphs of its blocks, and yield what each of them returns."""
    blocks, returned, counted = blocks_of(engine.model.net), dict[Any, str](), set[Any]()

    def note(block: Any, _: Any, output: Any) -> None:
        returned.setdefault(block, describe.structure(output))

    hooks = [block.register_forward_hook(note) for block in set(blocks.values())]
    try:
        kept = kept_statistics(engine.model.parameters.values())
        with batch.contexts[0], mx.autograd.train_mode(), kept, run_by_python(blocks.values()):
            Network(engine.model.net, engine.spec, TRAIN)(batch.slots[0])
    finally:
        for hook in hooks:
            hook.detach()
    for name, block in blocks.items():
        own = {*block._reg_params.values(), *block.params.values()} - counted
        counted |= own
        if name or own:
            yield Layer(name or "net", type(block).__name__, returned.get(block, "-"), sum(map(_size, own)))


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


def _losses_by_trainer(engine: Engine, result: StepResult) -> dict[str, tuple[str, ...]]:
    """Return for each trainer the losses whose gradients reach its parameters.

    Returns an empty dict unless there are several trainers and several losses. `result` must have just been
    computed, and must not be trained on. Waits for the engine.
    """
    trainers = engine.trainers.get()
    if len(trainers) < 2 or len(engine.spec.terms) < 2:
        return {}
    updated = {trainer: trainers.updated(trainer).values() for trainer in trainers}
    reached: dict[str, tuple[str, ...]] = dict.fromkeys(updated, ())
    devices = _parts(engine, result)
    # all parameters, because BatchNorm updates its running statistics in the backward pass
    with preserve_state(engine.model.parameters.values(), ()):
        for term in (term for term in engine.spec.terms if all(term.key in parts for parts in devices)):
            for parameters in updated.values():
                for parameter in parameters:
                    parameter.zero_grad()
            try:
                mx.autograd.backward([parts[term.key] for parts in devices], retain_graph=True)
            except mx.base.MXNetError:
                continue  # a constant
            for trainer, parameters in updated.items():
                if trainer in (term.trainers or updated) and any(
                    gradient.asnumpy().any() for p in parameters for gradient in p.list_grad()
                ):
                    reached[trainer] += (term.key,)
    return reached


def _parts(engine: Engine, result: StepResult) -> Sequence[Mapping[str, Any]]:
    """Return what the losses returned on each device, so that it can be differentiated.

    If the first batch ran as a graph, the graph may block these gradients; net and losses then run again.
    """
    stage = engine.stages[TRAIN]
    if not stage.reruns or stage.graphs.differentiable:
        return result.parts
    again = []
    with stage.recording(), kept_statistics(engine.model.parameters.values()):
        for context, slots, parts in zip(result.batch.contexts, result.batch.slots, result.parts):
            with context:
                arrays = by_reference(stage.network(slots), slots)
                terms = [term for term in engine.spec.terms if term.key in parts]
                again.append({term.key: call_loss(term, arrays)[term.minimized] for term in terms})
    return again


def _without_gradient(engine: Engine) -> Iterator[str]:
    """Yield a warning if a trainer updates parameters that no loss's gradient reaches.

    They are behind an operator such as BlockGrad, or only outputs without a loss depend on them. MXNet's
    gradient is then 0, so that weight decay alone changes them. Nets that cannot be traced are skipped, and
    so are fits with handlers that change outputs or objectives, as these may train any parameter.
    """
    if engine.hooks.active("change_objective", "change_outputs"):
        return
    still = without_gradient(engine)
    if still:
        others = [name for name in engine.model.parameters if name not in still]
        yield (
            f"no loss's gradient reaches {listing(still)}, so at most weight decay changes them: an "
            "operator such as BlockGrad stops it, or only outputs without a loss depend on them; pass "
            f"{freezing(still, others)}, or give them a loss"
        )
