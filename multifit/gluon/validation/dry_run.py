"""The dry run: the first batch, checked for everything before the first update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import DataError, Problem, UserCodeError, raise_problems
from ..bound_losses import bound_problems
from ..data.batches import Batch
from ..data.seeding import preserve_rng
from ..engine import Engine
from ..execution.result import StepResult
from .first_batch import check_first_batch
from .out_of_step import out_of_step

NO_LOSS = "losses: there is none to train on; declare at least one in the TaskSpec"


@dataclass(frozen=True)
class DryRun:
    """What was computed from the first batch of the training data, and of validation data if there is any."""

    train: StepResult
    evaluate: StepResult | None = None


def dry_run(engine: Engine, raw: Any, val_data: Any = None) -> DryRun:
    """Check everything on one batch, and return what net, losses and metrics computed from it.

    Nothing is updated. The first batch of `val_data` is evaluated, and its figures are discarded. Raises
    SpecError, DataError or TrainerError with everything that is wrong, at once.
    """
    problems = [] if engine.spec.terms else [Problem("spec", NO_LOSS)]
    uninitialized = engine.model.initialize()
    problems += uninitialized
    batches: dict[str, Batch] = {}
    outputs: dict[str, Any] = {}
    for name, data in (("train", raw), ("evaluate", val_data)):
        if name == "train" or data is not None:
            batch, batch_problems = _fetch(engine, name, data)
            problems += batch_problems
            if batch is not None and not uninitialized:
                batches[name] = batch
    if not uninitialized:  # otherwise neither trainers nor net can be checked
        trainer_problems = engine.trainers.build()
        problems += trainer_problems or bound_problems(engine.spec.terms, engine.trainers.get())
    try:
        for name, batch in batches.items():
            if (
                name == "evaluate"
                and engine.spec.evaluate is None
                and any(p.kind == "spec" for p in problems)
            ):
                continue  # one TaskSpec serves both stages, and its problems are known
            engine.begin_stage(name, batch, problems)
            outputs[name], stage_problems = check_first_batch(engine.stages[name], batch)
            problems += stage_problems
    except UserCodeError:
        raise_problems(problems)  # these may be why it failed, and are easier to fix
        raise
    raise_problems(problems)
    trainers = engine.trainers.get()
    raise_problems(engine.trainers.unreached() or engine.gradients.problems(trainers) + out_of_step(engine))
    results = {
        name: _run(engine, name, batch, outputs[name]) for name, batch in reversed(list(batches.items()))
    }
    return DryRun(results["train"], results.get("evaluate"))


def _fetch(engine: Engine, name: str, data: Any) -> tuple[Batch | None, list[Problem]]:
    if name == "evaluate":
        try:
            with preserve_rng():
                data, _ = engine.readers[name].peek_first(data, "val_data")
        except DataError as error:
            return None, list(error.problems)
    splitter = engine.splitter(name)
    parts, problems = splitter.name_arrays(data)
    if not problems:
        return splitter.distribute(data, parts), []
    if name == "evaluate":
        problems = [Problem(problem.kind, f"val_data: {problem.message}") for problem in problems]
    return None, problems


def _run(engine: Engine, name: str, batch: Batch, outputs: Any) -> StepResult:
    stage = engine.stages[name]
    result = stage.run(batch, engine.state, outputs)
    stage.measure(result)
    raise_problems(stage.figures.name_problems())
    stage.figures.names()  # some metrics know their figures' names only now
    if name == "evaluate":
        stage.reset()
    return result
