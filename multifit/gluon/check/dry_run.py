"""The dry run: check everything on the first batch, before the first update, and change nothing."""

from typing import Any

from ...engines import DryRun, FirstBatches
from ...engines.dry_run import (
    check_batches,
    check_windows,
    measured_apart,
    raised_first,
    read_first,
    trainer_problems,
)
from ...utils.errors import Problem, raise_problems
from ...utils.seeding import preserve_rng
from ...utils.stages import EVALUATE, TRAIN
from ..compat import mx
from ..data.batch import Batch
from ..graph.cut import as_json, learning_variables
from ..optim.preserve_state import kept_statistics
from ..session import Session
from .first_batch import check_first_batch


def dry_run(session: Session, raw: Any, val_data: Any = None) -> DryRun:
    """Check everything on one batch, and return what net, losses and metrics computed from it.

    Nothing is updated: parameters, running statistics, figures and random states stay as they are, but for
    the state of MXNet's generator, which cannot be read. The first batch of `val_data` is evaluated. `raw`
    and `val_data` may be the :class:`FirstBatches` of several loaders. Raises SpecError, DataError or
    TrainerError with all problems at once.
    """
    batches, problems = read_first(session, raw, val_data)
    uninitialized = session.model.initialize()
    problems += uninitialized + trainer_problems(session)
    batches = [] if uninitialized else batches
    with raised_first(problems):
        for name, batch, _ in batches:
            session.begin_stage(name, batch, problems)

    def check(name: str, batch: Batch) -> tuple[Any, list[Problem]]:
        return check_first_batch(session.stages[name], batch, session.state)

    statistics = kept_statistics(session.model.parameters.values())
    with preserve_rng(), statistics, measured_apart(session.stages.values()):
        checked = check_batches(session, batches, problems, check)
        if session.spec.restricted and (left_out := without_gradient(session)):
            session.trainers.set_frozen("only", [session.model.parameters[name] for name in left_out], True)
            raise_problems(session.trainers.build())
        raise_problems(session.model.ran() + session.trainers.unreached())
        raise_problems(check_windows(session))
        for name, _, result in checked:
            stage = session.stages[name]
            stage.measure(result)
            raise_problems(stage.figures.name_problems())
            stage.figures.names()  # some metrics know their figures' names only now
    results = {name: [each for at, _, each in checked if at == name] for name in (EVALUATE, TRAIN)}
    return DryRun(results, raw.plans if isinstance(raw, FirstBatches) else ())


def without_gradient(session: Session) -> list[str]:
    """Return the parameters that trainers update, but no loss's gradient reaches."""
    outputs = session.stages[TRAIN].network.traced_outputs
    terms = [term for term in session.spec.terms if term.spec.weight != 0]
    taken = {ref.name for term in terms for ref in term.outputs}
    if not taken & outputs.keys():
        return []
    graph = mx.sym.Group(list(outputs.values()))
    learning = learning_variables(as_json(graph), [name in taken for name in outputs])
    losses = [term.spec.fn for term in terms if isinstance(term.spec.fn, mx.gluon.Block)]
    learning |= {name for loss in losses for name in loss.collect_params()}  # it may use a layer of the net
    used, parameters = set(graph.list_arguments()), session.model.parameters
    return [name for name in session.trainers.updated() if parameters[name].name in used - learning]
