"""The dry run: check everything on the first batch, before the first update, and change nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from .. import engines
from ..engines import FirstBatches
from ..engines.dry_run import check_batches, check_windows, raised_first, read_first, trainer_problems
from ..engines.splitter import cast_line
from ..spec import TaskSpec
from ..spec.checks.results import absent_problems, weights_problems
from ..spec.checks.values import label_problems, not_finite_problem
from ..spec.parsing import label_of
from ..spec.plan import LoaderPlan
from ..spec.terms import LABELS, Ref, Term, by_reference
from ..utils.errors import Problem, SpecError, raise_problems
from ..utils.seeding import preserve_rng
from ..utils.stages import EVALUATE, TRAIN
from .added_slots import dtype_name
from .balance import GradientBalancer
from .batch import Batch
from .doubts import doubtful_values
from .inspection import check_call, check_metric, inspect_term
from .labels import LabelRule, partly_missing
from .loss_calls import call_loss
from .session import Session
from .step import Stage, StepResult

NO_OUTPUT = (
    "outputs: autograd has computed none of them from parameters that are trained, so losses train nothing; "
    "let the net compute them without torch.no_grad(), detach() or numpy()"
)


@dataclass(frozen=True)
class DryRun(engines.DryRun):
    """The results of the first batch of each loader, by stage, detached from autograd's graph.

    `reached` are the parameters that the gradient of each loss reaches, and `used` those from which the
    outputs are computed, by name. `doubts` are warnings of values for which a loss was hardly meant. `shared`
    says what tasks share whose gradients are compared.
    """

    reached: Mapping[str, frozenset[str]] = field(default_factory=dict)
    used: frozenset[str] = frozenset()
    doubts: Sequence[str] = ()
    shared: str = ""


def dry_run(session: Session, raw: Any, val_data: Any = None) -> DryRun:
    """Check everything on one batch, and return what net and losses computed from it.

    Nothing is updated: parameters, buffers, the modes of modules, figures and random states stay as they are.
    The first batch of `val_data` is evaluated. `raw` and `val_data` may be the :class:`FirstBatches` of
    several loaders. Raises SpecError, DataError or TrainerError with all problems at once.
    """
    batches, problems = read_first(session, raw, val_data)
    with raised_first(problems):
        for name, batch, _ in batches[:1]:
            stage = session.stages[name]
            session.model.materialise(partial(_called, stage, batch, partial(stage.call, batch.slots)))
    problems += trainer_problems(session)
    with raised_first(problems):
        for _, batch, _ in batches:
            session.shared.begin_stage(batch, problems)
    with preserved(session):
        return _checked(session, batches, problems, raw.plans if isinstance(raw, FirstBatches) else ())


def _checked(
    session: Session, batches: Sequence[Any], problems: list[Problem], plans: Sequence[LoaderPlan]
) -> DryRun:
    """Run the batches; raises all problems."""
    trained = [] if problems else list(session.trainers.updated())

    def check(name: str, batch: Batch) -> tuple[Any, list[Problem]]:
        return check_first_batch(session.stages[name], batch, trained)

    checked = check_batches(session, batches, problems, check)
    raise_problems(session.model.ran() + session.trainers.unreached())
    raise_problems(check_windows(session))
    results: dict[str, list[StepResult]] = {EVALUATE: [], TRAIN: []}
    parameters = {id(each): name for name, each in session.model.parameters.items()}
    reached, used, doubts = dict[str, frozenset[str]](), frozenset[str](), list[str]()
    shared = ""
    for name, batch, outputs in checked:
        stage = session.stages[name]
        result = stage.run(batch, session.state, outputs=outputs)
        if name == EVALUATE or not session.hooks.handle_non_finite:
            raise_problems(_not_finite_losses(result))
        stage.measure(result)
        raise_problems(stage.figures.name_problems())
        stage.figures.names()  # some metrics know their figures' names only now
        doubts += doubtful_values(result, session.model.net)
        if name == TRAIN:
            if isinstance(session.balancer, GradientBalancer):
                shared = session.balancer.describe(result, trained)
            used |= leaves_of(result.outputs.values(), parameters)
            for key, objective in result.objectives.items():
                reached[key] = reached.get(key, frozenset()) | leaves_of([objective], parameters)
        result.detach()
        results[name].append(result)
    run = DryRun(results, plans, reached, used, tuple(doubts), shared)
    if session.spec.restricted and (left_out := without_gradient(session, run)):
        session.trainers.set_frozen("only", [session.model.parameters[name] for name in left_out], True)
        raise_problems(session.trainers.build())
    return run


def without_gradient(session: Session, run: DryRun) -> list[str]:
    """Return the parameters that trainers update, and that outputs depend on, but that no loss reaches."""
    weighed = {term.key for term in session.spec.terms if term.spec.weight != 0}
    reached = frozenset[str]().union(*(run.reached[key] for key in weighed if key in run.reached))
    return [name for name in session.trainers.updated() if name in run.used - reached]


def leaves_of(tensors: Any, names: Mapping[int, str]) -> frozenset[str]:
    """Return the names of the parameters that tensors depend on, in autograd's graph; `names` are by id."""
    leaves, seen = set[int](), set[Any]()
    waiting = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    leaves |= {id(tensor) for tensor in tensors if tensor.grad_fn is None}
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if (variable := getattr(node, "variable", None)) is not None:
            leaves.add(id(variable))
        waiting += [following for following, _ in node.next_functions if following is not None]
    return frozenset(names[each] for each in leaves & names.keys())


@contextmanager
def preserved(session: Session, trainers: bool = False) -> Iterator[None]:
    """Put everything back that a batch may change, at the end of the block.

    These are parameters, their gradients, buffers, the modes of modules, random states, figures, and carried
    state; with `trainers` the states of trainers too.
    """
    model = session.model
    parameters = [(p, p.detach().clone(), p.grad) for p in model.parameters.values() if not is_lazy(p)]
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    tensors = [buffer for _, held in buffers for buffer in held.values()] + [grad for *_, grad in parameters]
    values = [(each, each.clone()) for each in tensors if each is not None and not is_lazy(each)]
    state = copy.deepcopy(session.trainers.state()) if trainers else None
    stages = session.stages.values()
    # a run that is resumed within an epoch has figures before its first batch
    measured = [(stage, copy.deepcopy(stage.state())) for stage in stages if stage.figures.batches]
    try:
        with preserve_rng(), model.kept_modes():
            yield
    finally:
        with torch.no_grad():
            for parameter, value, gradient in parameters:
                parameter.copy_(value)
                parameter.grad = gradient
            for module, held in buffers:
                module._buffers.clear()
                module._buffers.update(held)
            for tensor, value in values:
                tensor.copy_(value)
        if state is not None:
            session.trainers.load(state)
        for stage in stages:
            stage.reset()
        for stage, saved in measured:
            stage.load(saved)


def _not_finite_losses(result: StepResult) -> list[Problem]:
    """Check that losses are numbers, where inputs and labels are."""
    messages = [
        f'losses["{key}"]: is {float(each.detach()):g} for this batch, whose inputs and labels are finite, '
        "so that an update would spoil the parameters; look for logarithms, roots and quotients of 0 in the "
        "loss, and for parameters that are not finite; SkipNonFinite() skips such batches in training"
        for key, each in result.objectives.items()
        if not bool(each.isfinite().all())
    ]
    return [Problem("data", message) for message in messages]


def check_first_batch(
    stage: Stage, batch: Batch, trained: Sequence[str] = ()
) -> tuple[dict[str, Tensor] | None, list[Problem]]:
    """Run the net on a batch, and check outputs, losses and metrics; return the outputs and all problems.

    Labels and inputs with whose dtypes losses and net cannot run are cast, from this batch on. Without
    problems, the stage is marked as checked.
    """
    problems = [problem for term in stage.spec.terms for problem in check_call(term)]
    problems += absent_problems(stage.spec, batch.slots)
    problems += weights_problems(stage.spec, lambda name: _least(batch.slots.get(name)))
    with torch.set_grad_enabled(stage.training):
        outputs, output_problems = _called(stage, batch, lambda: stage.bound(batch.slots))
    arrays = by_reference(outputs, batch.slots)
    wrong_labels = _inspect_labels(stage, outputs, arrays, batch)
    if problems + output_problems:
        return None, problems + wrong_labels + output_problems
    problems = [*wrong_labels, *_inspect_metrics(stage, outputs, batch)]
    for term in stage.spec.terms:
        if term.has_slots(arrays):
            problems += _check_loss(stage, term, arrays, batch, labels_fit=not wrong_labels)
    if not problems:
        problems += _missing_in_part(stage.spec, arrays, batch)
    if stage.training and trained and not any(each.requires_grad for each in outputs.values()):
        problems.append(Problem("spec", NO_OUTPUT))
    stage.checked = not problems
    return outputs, problems


def _missing_in_part(spec: TaskSpec, arrays: Mapping[Ref, Any], batch: Batch) -> list[Problem]:
    """Check that no sample lacks only a part of a label, for losses that take whole samples.

    These have no value for each value of the label, or what is missing changes the other values.
    """
    problems = []
    for term in (term for term in spec.terms if term.present and term.has_slots(arrays)):
        masks = {label_of(ref): arrays[ref] != 0 for ref in term.present}
        losses = []
        for other in (0, 1):
            labels = {ref: torch.where(known, arrays[ref], other) for ref, known in masks.items()}
            with torch.no_grad():
                losses.append(call_loss(term, {**arrays, **labels}, batch.samples))
        rules = list(partly_missing(spec, batch.slots, {term.key: losses[0]}))
        if not all(torch.equal(*map(torch.nan_to_num, pair)) for pair in zip(*losses)):
            masked = [ref for ref in term.present if arrays[ref].dim() > 1]
            rules = [LabelRule(term.where, ref, in_part=True) for ref in masked]
        counts = [(rule, int(rule.count(batch.slots[rule.label.name]))) for rule in rules]
        problems += [rule.problem("", count) for rule, count in counts if count]
    return problems


def _called(stage: Stage, batch: Batch, call: Callable[[], Any]) -> Any:
    """Call the net; inputs of whole numbers that it cannot take become real, the fewest that do."""
    inputs = {name: batch.slots.get(name) for name in stage.spec.inputs}
    whole = [name for name, each in inputs.items() if each is not None and not each.is_floating_point()]
    return _with_casts(stage, batch, [(name, stage.model.dtype) for name in whole], call)


def _check_loss(
    stage: Stage, term: Term, arrays: dict[Ref, Any], batch: Batch, labels_fit: bool
) -> list[Problem]:
    """Check a loss; labels with whose dtypes it cannot run are cast, unless they have a declared dtype."""
    options: list[tuple[str, torch.dtype]] = []
    for ref in term.labels:
        label = arrays[ref]
        declared = stage.spec.label_specs.get(ref.name)
        if ref.name in stage.spec.inputs or (declared is not None and declared.dtype is not None):
            continue
        is_whole = not label.is_floating_point() or bool((label == label.floor()).all())
        dtypes = [torch.int64] * is_whole + [stage.model.dtype]
        options += [(ref.name, dtype) for dtype in dtypes if dtype != label.dtype]

    def check() -> list[Problem]:
        arrays.update({Ref(LABELS, name): batch.slots[name] for name, _ in options})
        return inspect_term(term, arrays, labels_fit, stage.training)

    return _with_casts(stage, batch, options, check)


def _with_casts(
    stage: Stage, batch: Batch, options: Sequence[tuple[str, torch.dtype]], run: Callable[[], Any]
) -> Any:
    """Return what ``run()`` returns; if it raises, cast the fewest slots with which it does not.

    `options` are slots, and the dtypes to which they may be cast. If none helps, the error is raised.
    """
    try:
        return run()
    except Exception:
        before: dict[str, Any] = dict(batch.slots)
        ways = [dict(way) for count in range(len(options)) for way in combinations(options, count + 1)]
        for casts in ways:
            batch.slots.update({name: before[name].to(dtype) for name, dtype in casts.items()})
            try:
                result = run()
            except Exception:
                batch.slots.update(before)
                continue
            for name, dtype in casts.items():
                stage.model.log_once(cast_line(name, dtype_name(before[name].dtype), dtype_name(dtype)))
            stage.casts.update(casts)
            return result
        raise


def _least(weights: Any) -> float | None:
    return None if weights is None or not weights.numel() else float(weights.min())


def _inspect_labels(
    stage: Stage, outputs: Mapping[str, Tensor], arrays: Mapping[Ref, Any], batch: Batch
) -> list[Problem]:
    """Check the values of inputs and labels."""
    problems: list[Problem] = []
    present = {ref for ref, array in arrays.items() if array is not None}
    called = {term.key: () for term in stage.spec.terms if present.issuperset(term.args)}
    for rule in stage.figures.label_rules(outputs, batch.slots, called):
        values: Any = batch.slots[rule.label.name]
        if rule.classes is not None:
            wrong = torch.where(rule.violations(values), values, 0).cpu().numpy()
            problems += label_problems(rule.where, rule.label.name, wrong, rule.classes, clips=False)
        elif not (finite := values.isfinite()).all():
            samples = (~finite).nonzero()[:, batch.axis].unique().tolist()
            problems.append(not_finite_problem(rule.where, values[~finite].double().cpu().numpy(), samples))
    return problems


def _inspect_metrics(stage: Stage, outputs: dict[str, Tensor], batch: Batch) -> list[Problem]:
    """Check the metrics' arguments, and measure those that take no losses, on copies of the outputs."""
    problems = [problem for metric in stage.figures.metrics for problem in check_metric(metric)]
    result = StepResult(stage.spec, batch, {name: each.detach() for name, each in outputs.items()})
    figures = stage.figures
    for metric in figures.metrics if not problems else ():
        if not metric.term.losses:
            try:
                for name, values in figures.metric_sums(metric, result, 1):
                    figures.sums.add(tuple([(name, each.numel()) for each in values]), values)
                if metric.is_summed:
                    metric.compute(figures.sums.read(), complete=False)
            except SpecError as error:
                problems += error.problems
    figures.reset()
    return problems
