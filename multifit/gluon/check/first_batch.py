"""Check everything about a stage that can be checked on its first batch."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...handlers.state import RunState
from ...spec.terms import LABELS, Ref, Term, by_reference
from ...utils.errors import Problem
from ...utils.text import quoted
from ..compat import mx
from ..data.arrays import cast_line, fewest_casts, has_other_dtype
from ..data.batch import Batch
from ..graph.repair import uncorrected
from ..metrics.catalogue import value_axis
from ..step.blocks import blocks_of
from ..step.network import hybridizing, is_hybridized
from ..step.stage import Stage, StepResult
from ..user_code import user_code
from .inspection import (
    check_call,
    inspect_labels,
    inspect_metric,
    inspect_presence,
    inspect_slots,
    inspect_term,
    is_recorded,
)


def check_first_batch(stage: Stage, batch: Batch, state: RunState) -> tuple[StepResult | None, list[Problem]]:
    """Run net, losses and metrics on the first device's samples, and check them; nothing is updated.

    Returns what was computed, and all problems. If there are none, the stage is marked as checked.
    """
    problems = [problem for term in stage.spec.terms for problem in check_call(term)]
    slots = batch.slots[0]
    problems += inspect_slots(stage.spec, batch.slots) + _not_in_one_graph(stage) + _updates_the_rest(stage)
    with stage.recording(), batch.contexts[0]:
        outputs, output_problems = stage.network.bind(slots)
    inputs = [(name, slots[name]) for name in stage.spec.inputs]
    with user_code(lambda: f"the net's forward pass ({stage.network.stage})", *inputs):
        for output in (outputs or {}).values():
            output.wait_to_read()  # errors of operators are raised here, where their place is known
    arrays = by_reference(outputs or {}, slots)
    label_problems = inspect_labels(stage.figures.label_rules(arrays), batch)
    if problems + output_problems:
        return None, problems + label_problems + output_problems
    problems, own_gradients = list(label_problems), set[str]()
    for metric in stage.figures.metrics:
        if metric.term.has_slots(arrays):
            takes_whole = value_axis(metric.term, metric.metric, arrays) is None
            found = inspect_presence(metric.term, batch) if takes_whole else []
            problems += found or inspect_metric(metric, arrays)
    for term in stage.spec.terms:
        if not term.has_slots(arrays):
            continue
        found, ignores_gradient = _check_loss(stage, term, arrays, batch, labels_fit=not label_problems)
        own_gradients |= {term.key} if ignores_gradient else set()
        if term.present and not found and not label_problems and not stage.graphs.counts_values(term, arrays):
            found = inspect_presence(term, batch)
        problems += found
        problems += _averages_samples(term, arrays, batch)
    problems += _unchangeable(stage, own_gradients) or _outside_autograd(stage, outputs)
    problems += _wrong_gradients(stage)
    if problems:
        return None, problems
    stage.checked = True
    return stage.rehearse(batch, outputs, state, own_gradients), []


def _check_loss(
    stage: Stage, term: Term, arrays: dict[Ref, Any], batch: Batch, labels_fit: bool
) -> tuple[list[Problem], bool]:
    """Check a loss; cast the labels with whose dtypes it cannot run, from this batch on.

    Returns what :func:`inspect_term` returns. Labels with a declared dtype stay as they are, and so do
    inputs, unless the net needs them cast too.
    """

    def check(casts: Sequence[str] = ()) -> tuple[list[Problem], bool]:
        cast = {Ref(LABELS, name): arrays[Ref(LABELS, name)].astype(stage.dtype) for name in casts}
        return inspect_term(term, {**arrays, **cast}, labels_fit, stage.training)

    try:
        return check()
    except Exception:  # of the loss, which may take other dtypes
        kept = {name for name, label in stage.spec.label_specs.items() if label.dtype is not None}
        kept |= set(stage.spec.inputs) - stage.network.casts.keys()
        others = [ref for ref in term.labels if has_other_dtype(arrays[ref], stage.dtype)]
        casts = fewest_casts(check, [ref.name for ref in others if ref.name not in kept])
        if not casts:
            raise
    for name in casts:
        stage.network.log_once(cast_line(name, arrays[Ref(LABELS, name)].dtype, stage.dtype))
        stage.casts[name] = stage.dtype
        for slots in batch.slots:
            array: Any = slots[name]
            slots[name] = array.astype(stage.dtype)
    arrays.update(by_reference({}, batch.slots[0]))
    batch.signature = None
    return check()


def _not_in_one_graph(stage: Stage) -> list[Problem]:
    """Return why net and losses cannot be one graph, if they must be one."""
    if not stage.separation.needs_graph:
        return []
    bound = {term.key for term in stage.spec.terms if term.trainers}
    start = "balance: the gradients of tasks are compared in the traced graph of net and losses"
    use = "or use a method of losses, such as DWA or Uncertainty"
    outside = stage.graphs.outside
    if bound:
        start = f"losses: the traced graph of net and losses binds {quoted(sorted(bound))} to trainers"
        use = "or leave trainers= out"
    reason = (
        "it has a forward or hooks of its own, or a handler changes its outputs"
        if stage.network.hybridized
        else hybridizing(stage.network.net)[1]
    )
    problems = [] if stage.network.joins_losses else [f"the net is not in it: {reason}"]
    problems += [f"{term.where} is not in it: make it a HybridBlock and hybridize it" for term in outside]
    return [Problem("spec", f"{start}, and {problem}; {use}") for problem in problems]


def _updates_the_rest(stage: Stage) -> list[Problem]:
    """Return why a batch of one loader would update parameters that it does not reach."""
    network = stage.network
    if not stage.is_partial or network.joins_losses or network.by_python or not network.hybridized:
        return []
    why = (
        "as a hybridized net with a forward or hooks of its own is one operator, which updates all parameters"
    )
    way_out = "do not hybridize the net itself but its parts, such as net.body.hybridize()"
    return [Problem("spec", f"sampling: loaders cannot take turns, {why}; {way_out}, or use Together()")]


def _unchangeable(stage: Stage, own_gradients: Collection[str]) -> list[Problem]:
    """Return the losses whose gradients ignore the objective's gradient, if that must have an effect."""
    if not stage.changes_objective and not stage.separation.balances:
        return []
    who = "balance=" if stage.separation.balances else "handlers that change the objective"
    message = f"it ignores the gradient that it receives, so {who} would have no effect"
    way_out = "leave them out, or use a loss such as multifit.losses.SegmentationCELoss"
    return [
        Problem("spec", f"{term.where}: {message}; {way_out}")
        for term in stage.spec.terms
        if term.key in own_gradients
    ]


def _outside_autograd(stage: Stage, outputs: Mapping[str, Any]) -> list[Problem]:
    """Return a problem if the net has trained parameters, but no output was recorded by autograd."""
    trained = any(parameter.grad_req != "null" for parameter in stage.network.net.collect_params().values())
    if not (stage.training and trained) or any(map(is_recorded, outputs.values())):
        return []
    message = "autograd has computed none of them from parameters that are trained, so losses train nothing"
    way_out = "let the net compute them without autograd.pause(), detach() or asnumpy()"
    return [Problem("spec", f"outputs: {message}; {way_out}")]


def _wrong_gradients(stage: Stage) -> list[Problem]:
    """Return the operators in hybridized blocks whose gradients MXNet computes wrongly."""
    if not stage.training:
        return []
    network = stage.network
    trained = {p.name for p in network.net.collect_params().values() if p.grad_req != "null"}
    traced = network.traced_symbols if network.traced else []
    graphs: list[tuple[Any, set[str] | None]] = [(symbol, trained) for symbol in traced]
    blocks = [term.spec.fn for term in stage.spec.terms if isinstance(term.spec.fn, mx.gluon.Block)]
    for block in blocks if network.traced else [network.net, *blocks]:
        own = [each for each in blocks_of(block).values() if _has_graph(each)]
        graphs += [(each._cached_graph[1], None) for each in own]
    wrong = sorted({name for graph, learned in graphs for name in uncorrected(graph, learned)})
    message = "the gradients of F.contrib.{} are wrong in a hybridized block, in MXNet"
    way_out = "use F.where, or F.contrib.foreach, or do not hybridize the block that calls it"
    return [Problem("spec", f"{message.format(name)}; {way_out}") for name in wrong]


def _has_graph(block: Any) -> bool:
    """Whether a block runs a graph of its own; a SymbolBlock does without being hybridized."""
    return isinstance(block, mx.gluon.SymbolBlock) or (is_hybridized(block) and bool(block._cached_graph))


def _averages_samples(term: Term, arrays: Mapping[Ref, Any], batch: Batch) -> list[Problem]:
    """Return a problem if a Gluon loss averages over the samples, because its batch axis is another axis.

    The means of all devices would then be added up. A loss without a batch axis returns a scalar, which
    counts as its device's mean.
    """
    axis, samples = getattr(term.spec.fn, "_batch_axis", None), batch.sizes[0]
    if len(batch.contexts) == 1 or not isinstance(axis, int):
        return []
    shapes = {str(ref): arrays[ref].shape for ref in term.outputs}
    wrong = [
        f"{name} {shape}"
        for name, shape in shapes.items()
        if shape[axis : axis + 1 or None] != (samples,) == shape[batch.axis : batch.axis + 1]
    ]
    if not wrong:
        return []
    message = f"its batch_axis is {axis}, but the samples of {', '.join(wrong)} are along axis {batch.axis}"
    way_out = f"give the loss batch_axis={batch.axis}; if it does not take that, train on one device"
    return [Problem("spec", f"{term.where}: {message}; {way_out}")]
