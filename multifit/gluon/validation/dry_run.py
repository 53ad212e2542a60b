"""The proof that a spec fits net, data and trainers, on the first batch and before the first update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable

import numpy as np

from ...errors import DataError, Problem, UserCodeError, names, raise_problems, suggest
from ...plan import Plan, StagePlan, TrainerPlan, stage_plan
from ...spec.names import listed
from ..data.batches import Batch
from ..data.loaders import peek_first
from ..data.seeding import preserve_rng
from ..engine import Engine
from ..execution.result import Result
from ..execution.stage import Stage

NO_LOSS = "losses: there is none to train on; declare at least one in the TaskSpec"

__all__ = ["DryRun", "check_monitors", "dry_run", "make_plan"]


@dataclass(frozen=True)
class DryRun:
    """What came out of the first batches: of the training data, and of validation data if there is any."""

    train: Result
    evaluate: Result | None = None


def dry_run(engine: Engine, raw: Any, val_data: Any = None) -> DryRun:
    """Check everything on one batch, and return what the net, the losses and the metrics made of it.

    Nothing is updated. Of `val_data` the first batch is evaluated, and its figures are forgotten.

    Raises
    ------
    SpecError, DataError, TrainerError
        Everything that was found to be wrong, at once.
    """
    problems = [] if engine.spec.terms else [Problem("spec", NO_LOSS)]
    cold = engine.initialize()
    problems += cold
    batches: dict[str, Batch] = {}
    for name, data in (("train", raw), ("evaluate", val_data)):
        if name == "train" or data is not None:
            problems += _inspected(engine, name, data, {} if cold else batches)
    if not cold:  # else neither the trainers nor the net can be looked at
        problems += engine.bind_trainers()
    try:
        for name, batch in batches.items():
            problems += _bound(engine, name, batch, problems)
    except UserCodeError:
        raise_problems(problems)  # these may be why it failed, and are easier to mend
        raise
    raise_problems(problems or engine.unreached())
    results = {name: _measured(engine, name, batch) for name, batch in reversed(list(batches.items()))}
    return DryRun(results["train"], results.get("evaluate"))


def _bound(engine: Engine, name: str, batch: Batch, before: list[Problem]) -> list[Problem]:
    if name == "evaluate" and engine.spec.evaluate is None and any(p.kind == "spec" for p in before):
        return []  # what was wrong with the one TaskSpec is wrong here too
    return engine.stages[name].bind(batch)


def check_monitors(engine: Engine, handlers: Iterable[Any], evaluated: bool) -> None:
    """Check the figures that handlers monitor by name.

    Raises
    ------
    ValueError
        A handler's `monitor` is no figure of this run, or its `mode` is None and the direction is not known.
    """
    known = {f"train_{name}": ("train", name) for name in engine.figure_names("train")}
    if evaluated:
        known.update({f"val_{name}": ("evaluate", name) for name in engine.figure_names("evaluate")})
    rates = list(engine.bound_trainers().learning_rates())
    messages = []
    for handler in handlers:
        monitor = getattr(handler, "monitor", None)
        if not isinstance(monitor, str):
            continue
        if monitor not in known and monitor not in rates:
            hint = "" if evaluated else "; val_ figures need validation data"
            valid = [*known, *rates]
            messages.append(
                f'{type(handler).__name__}: there is no figure "{monitor}"{suggest(monitor, valid)}; '
                f"figures are {names(valid)}{hint}"
            )
        elif getattr(handler, "mode", None) is None and (
            monitor in rates or engine.direction(*known[monitor]) is None
        ):
            messages.append(
                f'{type(handler).__name__}: whether "{monitor}" is better low or high is not known; '
                'say mode="min" or "max" in the MetricSpec or in the handler'
            )
    if messages:
        raise ValueError("\n".join(messages))


def make_plan(engine: Engine, proof: DryRun, notices: Iterable[str]) -> Plan:
    """Describe what was proved."""
    return Plan(
        devices=tuple(map(str, engine.contexts)),
        samples=proof.train.batch.samples,
        train=_stage(engine.stages["train"], proof.train),
        evaluate=_stage(engine.stages["evaluate"], proof.evaluate) if proof.evaluate else None,
        trainers=tuple(_trainer(engine, name) for name in engine.bound_trainers()),
        frozen=tuple(engine.cold()),
        notices=tuple(notices),
        precision=engine.precision.name,
    )


def _inspected(engine: Engine, name: str, data: Any, batches: dict[str, Batch]) -> list[Problem]:
    if name == "evaluate":
        try:
            with preserve_rng():
                data, _ = peek_first(data, "val_data")
        except DataError as error:
            return list(error.problems)
    feed = engine.feed(name)
    arrays, problems = feed.name_arrays(data)
    if not problems:
        batches[name] = feed.distribute(data, arrays)
    elif name == "evaluate":
        problems = [Problem(p.kind, f"val_data: {p.message}") for p in problems]
    return problems


def _measured(engine: Engine, name: str, batch: Batch) -> Result:
    stage = engine.stages[name]
    result = stage.run(batch, engine.state)
    stage.measure(result)
    if any(measure.on_device and listed(measure.term.spec.names) for measure in stage.measures):
        stage.figures()  # only a metric that was fed tells how many figures it has
    problems = [measure.problem() for measure in stage.measures]
    raise_problems(problem for problem in problems if problem)
    for measure in stage.measures:
        stage.names(measure)
    if stage.name == "evaluate":
        stage.reset()
    return result


def _stage(stage: Stage, result: Result) -> StagePlan:
    metrics = [
        (
            m.term.key,
            stage.names(m),
            "summed on the device" if m.on_device else "updated batch by batch",
        )
        for m in stage.measures
    ]
    return stage_plan(
        stage.spec, result.outputs[0], result.batch.slots[0], result.parts[0], metrics, stage.how()
    )


def _size(parameter: Any) -> int:
    # a parameter that a SymbolBlock loaded does not know its own shape
    return int(np.prod(parameter.shape or parameter.list_data()[0].shape))


def _trainer(engine: Engine, name: str) -> TrainerPlan:
    trainers = engine.bound_trainers()
    held = tuple(trainers.held[name])
    size = sum(_size(engine.parameters[parameter]) for parameter in held)
    trainer = trainers[name]
    return TrainerPlan(
        name,
        type(trainer.optimizer).__name__,
        float(trainer.learning_rate),
        held,
        size,
        trainers.clip_norms.get(name),
        trainers.calls(name),
    )
