"""Make the plan: the facts found by a dry run, as data that can be printed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from ..distributed.log_once import LogOnce
from ..spec.checks import describe
from ..spec.checks.trainers import freezing, listing
from ..spec.plan import Layer, Plan, StagePlan, TrainerPlan, stage_plan
from ..utils.stages import EVALUATE, TRAIN

Arrays = Mapping[str, Any]


def make_plan(
    session: Any,
    run: Any,
    log_once: LogOnce,
    warnings: Iterable[str],
    arrays: Callable[[Any], tuple[Arrays, Arrays, Arrays]],
    size: Callable[[Any], int],
    losses: Mapping[str, tuple[str, ...]],
    shared: str = "",
    **further: Any,
) -> Plan:
    """Describe devices, stages and trainers after a dry run; log its `warnings`.

    `arrays` returns the outputs, the slots and the parts of losses of a result, and `size` the number of a
    parameter's elements. `losses` are those that reach each trainer, `shared` says which parameters balanced
    tasks share, and `further` are fields of the plan.
    """
    for message in dict.fromkeys(warnings):
        log_once.warning(message)
    balancer, trainers = session.balancer, session.trainers.get()
    balance = "" if balancer is None else balancer.tasks.described(balancer.method)

    def stage(name: str) -> StagePlan:
        return _stage(session.stages[name], list(map(arrays, run.results[name])))

    return Plan(
        devices=tuple(map(str, session.model.contexts)),
        samples=run.train.batch.samples,
        train=stage(TRAIN),
        evaluate=stage(EVALUATE) if run.results[EVALUATE] else None,
        trainers=tuple(_trainer(trainers, name, losses.get(name, ()), size) for name in trainers),
        frozen=tuple(session.trainers.not_updated()),
        notices=tuple(log_once),
        precision=session.model.precision.name,
        loaders=tuple(run.loaders),
        balance="; ".join(filter(None, [balance, shared])),
        **further,
    )


def _stage(stage: Any, results: Sequence[tuple[Arrays, ...]]) -> StagePlan:
    """Describe a stage by its first batch; slots that it lacks, by the first batches of other loaders."""
    declared = {metric.key for metric in stage.spec.metric_terms}
    metrics = [
        (m.term.key, m.names, m.where_computed) for m in stage.figures.metrics if m.term.key in declared
    ]
    outputs, slots, parts = map(_first, zip(*results))
    return stage_plan(stage.spec, outputs, slots, parts, metrics, stage.describe())


def _first(dicts: Iterable[Arrays]) -> dict[str, str]:
    """Return, for each name, shape and dtype of the first array that is not None."""
    found: dict[str, str] = {}
    for arrays in dicts:
        new = {name: a for name, a in arrays.items() if a is not None and name not in found}
        found.update({name: describe.array(a) for name, a in new.items()})
    return found


def _trainer(trainers: Any, name: str, losses: tuple[str, ...], size: Callable[[Any], int]) -> TrainerPlan:
    updated, trainer = trainers.updated(name), trainers[name]
    return TrainerPlan(
        name,
        type(trainer.optimizer).__name__,
        trainer.learning_rate,
        tuple(updated),
        sum(map(size, updated.values())),
        trainers.clip_norms.get(name),
        losses,
        *trainers.rhythms.get(name, ()),
    )


def layers_of(
    modules: Mapping[str, Any],
    own_parameters: Callable[[Any], Collection[Any]],
    size: Callable[[Any], int],
    call: Callable[[], object],
) -> Iterator[Layer]:
    """Yield what each of the modules returns while ``call()`` runs the net, and its own parameters."""
    returned, counted = dict[Any, str](), set[Any]()

    def note(module: Any, _: Any, output: Any) -> None:
        returned.setdefault(module, describe.structure(output))

    with ExitStack() as hooks:
        for module in set(modules.values()):
            hooks.enter_context(module.register_forward_hook(note))
        call()
    for name, module in modules.items():
        own = set(own_parameters(module)) - counted
        counted |= own
        if name or own:
            yield Layer(name or "net", type(module).__name__, returned.get(module, "-"), sum(map(size, own)))


def unreached_warnings(session: Any, find: Callable[[], Sequence[str]], why: str) -> Iterator[str]:
    """Yield a warning of the parameters found, which trainers update, but no loss's gradient reaches.

    Fits with handlers that change outputs or objectives are skipped, as these may train any parameter.
    """
    if not session.hooks.active("change_objective", "change_outputs") and (names := find()):
        others = [name for name in session.model.parameters if name not in names]
        yield (
            f"no loss's gradient reaches {listing(names)}, {why}, or only outputs without a loss depend on "
            f"them; pass {freezing(names, others)}, or give them a loss"
        )
