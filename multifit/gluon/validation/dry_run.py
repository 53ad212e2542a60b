"""The dry run: check everything on the first batch, before the first update."""

from typing import Any

from ...checks.trainers import bound_problems, window_problems
from ...engines import FirstBatches
from ...engines.first_batches import (
    NO_LOSS,
    each_first,
    fetch_first,
    is_refused,
    named_problems,
    raised_first,
)
from ...engines.first_batches import (
    DryRun as DryRun,
)
from ...errors import Problem, raise_problems
from ...stages import EVALUATE, TRAIN
from ..compat import mx
from ..data.batch import Batch
from ..engine import Engine
from ..execution.graph_cut import as_json, learning_variables
from ..execution.result import StepResult
from .first_batch import check_first_batch


def dry_run(engine: Engine, raw: Any, val_data: Any = None) -> DryRun:
    """Check everything on one batch, and return what net, losses and metrics computed from it.

    Nothing is updated. The first batch of `val_data` is evaluated, and its figures are discarded. `raw` and
    `val_data` may be the :class:`FirstBatches` of several loaders; the figures of training are then discarded
    too. Raises SpecError, DataError or TrainerError with all problems at once.
    """
    problems = [] if engine.spec.terms else [Problem("spec", NO_LOSS)]
    uninitialized = engine.model.initialize()
    problems += uninitialized
    batches: list[tuple[str, Batch, Any]] = []  # with the data that it comes from
    checked: list[tuple[str, Batch, Any]] = []  # with what the net and the losses returned
    for name, first in each_first(raw, val_data):
        batch, batch_problems = fetch_first(engine, name, first)
        problems += batch_problems
        if batch is not None and not uninitialized:
            batches.append((name, batch, first))
    trainer_problems = engine.trainers.build()
    problems += trainer_problems or bound_problems(engine.spec.terms, engine.trainers.get())
    with raised_first(problems):
        for name, batch, first in batches:
            if is_refused(engine, name, problems):
                continue
            engine.begin_stage(name, batch, problems)
            stage_outputs, stage_problems = check_first_batch(engine.stages[name], batch)
            checked.append((name, batch, stage_outputs))
            problems += named_problems(stage_problems, name, first)
    raise_problems(problems)
    if engine.spec.restricted and (left_out := without_gradient(engine)):
        engine.trainers.set_frozen("only", [engine.model.parameters[name] for name in left_out], True)
        raise_problems(engine.trainers.build())
    raise_problems(engine.model.ran() + engine.trainers.unreached())
    trainers = engine.trainers.get()
    windows = {name: trainers.window(name) for name in trainers}
    problems = window_problems(engine.stages[TRAIN].spec.terms, windows)
    raise_problems(engine.gradients.problems(trainers) + problems)
    results = {  # training last, as a fit then computes its gradients
        stage: [_run(engine, *each) for each in checked if each[0] == stage] for stage in (EVALUATE, TRAIN)
    }
    if isinstance(raw, FirstBatches):
        engine.stages[TRAIN].reset()
        return DryRun(results, raw.plans)
    return DryRun(results)


def without_gradient(engine: Engine) -> list[str]:
    """Return the parameters that trainers update, but no loss's gradient reaches."""
    outputs = engine.stages[TRAIN].network.traced_outputs
    terms = [term for term in engine.spec.terms if term.spec.weight != 0]
    taken = {ref.name for term in terms for ref in term.outputs}
    if not taken & outputs.keys():
        return []
    graph = mx.sym.Group(list(outputs.values()))
    learning = learning_variables(as_json(graph), [name in taken for name in outputs])
    losses = [term.spec.fn for term in terms if isinstance(term.spec.fn, mx.gluon.Block)]
    learning |= {name for loss in losses for name in loss.collect_params()}  # it may use a layer of the net
    used, parameters = set(graph.list_arguments()), engine.model.parameters
    return [name for name in engine.trainers.updated() if parameters[name].name in used - learning]


def _run(engine: Engine, name: str, batch: Batch, outputs: Any) -> StepResult:
    stage = engine.stages[name]
    result = stage.run(batch, engine.state, outputs)
    stage.measure(result)
    raise_problems(stage.figures.name_problems())
    stage.figures.names()  # some metrics know their figures' names only now
    if name == EVALUATE:
        stage.reset()
    return result
