"""Checks of declarations: each by itself, then across them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..utils.arguments import is_finite_number
from ..utils.errors import SpecError, user_code
from ..utils.signatures import arity_problem
from ..utils.stages import EVALUATE, STAGES
from ..utils.text import quoted, shown, suggest
from .parsing import coverage, is_missable
from .terms import (
    LABELS,
    OUTPUTS,
    PRINTABLE,
    SINGULAR,
    Declarations,
    MetricTerm,
    Ref,
    Term,
    is_name,
    listed,
    resolve,
)


def routing_messages(declarations: Declarations) -> Iterator[str]:
    """Yield what is wrong with the batch's order and with `unused`, and which names nothing takes."""
    yield from _batch(declarations)
    yield from _unknown_unused(declarations)
    yield from _not_taken(declarations)


def _batch(declarations: Declarations) -> Iterator[str]:
    batch, slots, unused = declarations.batch, dict.fromkeys(declarations.slot_names), declarations.unused
    counts = Counter(batch)
    for name, count in counts.items():
        if count > 1:
            yield f'batch: "{name}" is listed {count} times; every slot of a batch has its own name'
        if name not in slots and name not in unused and f"{LABELS}.{name}" not in unused:
            yield (
                f'batch: "{name}" is neither an input nor a label{suggest(name, slots)}; valid are '
                f'{quoted(slots)}; if nothing takes it, list it: unused=["{name}"]'
            )
    missing = [name for name in slots if name not in counts and name not in declarations.state]
    if missing:
        every = "it must name every input and label"
        yield f"batch: {quoted(missing)} missing; {every}, it names {quoted(batch)}"


def _unknown_unused(declarations: Declarations) -> Iterator[str]:
    slots = (*declarations.slot_names, *declarations.batch)
    for name in declarations.unused:
        wrong = resolve(name, {OUTPUTS: declarations.output_names, LABELS: slots})[1]
        if wrong:
            yield f"unused: {wrong}"


def _not_taken(declarations: Declarations) -> Iterator[str]:
    if not declarations.takers:
        return  # a spec that only predicts
    used = _used(declarations)
    for space, declared in ((OUTPUTS, declarations.output_names), (LABELS, declarations.labels)):
        for name in dict.fromkeys(declared):
            if Ref(space, name) not in used:
                yield (
                    f'the {SINGULAR[space]} "{name}" is not taken by any loss or metric; '
                    f'route it, or list it: unused=["{name}"]'
                )


def _used(declarations: Declarations) -> set[Ref]:
    """Return the outputs and slots that something takes, or that are listed as unused."""
    slots = {LABELS: declarations.slot_names}
    used = {ref for item in declarations.takers for ref in item.args}
    used |= {Ref(LABELS, name) for name in declarations.inputs}
    used |= {
        Ref(LABELS, by)
        for term in declarations.terms
        for by in (term.spec.normalize_by, term.spec.sample_weight)
        if isinstance(by, str)
    }
    masks = [label.missing for label in declarations.label_specs.values() if isinstance(label.missing, str)]
    used |= {Ref(LABELS, name) for name in masks}
    used |= {Ref(OUTPUTS, name) for name in declarations.state}
    for name in declarations.unused:
        used.update(resolve(name, {OUTPUTS: declarations.output_names, **slots})[0])
    return used


MODES = ("min", "max")


def declaration_messages(declarations: Declarations) -> Iterator[str]:
    """Yield duplicate names, invalid losses, metrics and functions, and colliding names of figures."""
    yield from _duplicates(declarations)
    for term in declarations.terms:
        yield from _loss(term)
        yield from _class_weights(term)
    for metric in declarations.metric_terms:
        yield from _metric(metric)
    yield from _functions(declarations)
    yield from _never_computed(declarations)
    yield from _colliding_figures(declarations)


def weight_problem(where: str, weight: object) -> str | None:
    """Return what is wrong with a loss's weight, or None."""
    if callable(weight) or (is_finite_number(weight) and weight >= 0):  # type: ignore[operator]
        return None
    valid = "a finite number of at least 0, or a function of the state"
    return f"{where}: the weight is {shown(weight)}; it must be {valid}"


def weight_of(term: Term, state: Any) -> float:
    """Return a loss's weight in a batch; raises SpecError if its function returns none."""
    weight = term.spec.weight
    if not callable(weight):
        return float(weight)
    with user_code(lambda: f"{term.where}.weight, called with state {state!r}"):
        value = weight(state)
    if problem := weight_problem(term.where, shown(value) if callable(value) else value):
        raise SpecError(f"{problem}; its function returned it for {state}")
    return float(value)


def _duplicates(declarations: Declarations) -> Iterator[str]:
    for field in ("outputs", "labels", "inputs"):
        declared = declarations.output_names if field == "outputs" else getattr(declarations, field)
        for name, count in Counter(declared).items():
            if count > 1:
                yield f'{field}: "{name}" is declared {count} times; give each its own name'


def _loss(term: Term) -> Iterator[str]:
    loss, where = term.spec, term.where
    if isinstance(loss.fn, type):
        yield f"{where}: {loss.fn.__name__} is a class; give an instance: {loss.fn.__name__}()"
    elif loss.fn is not None and not callable(loss.fn):
        yield f"{where}: {shown(loss.fn)} cannot be called; give a loss of PyTorch or Gluon, or a function"
    if loss.fn is None and len(term.args) > 1:
        args = ", ".join(map(str, term.args))
        yield f"{where}: with fn=None one output is the loss itself, but {len(term.args)} are named: {args}"
    if term.args and not term.outputs:
        yield f"{where}: takes no output of the net, so there is nothing to train; name one with outputs="
    problem = weight_problem(where, loss.weight)
    if problem:
        yield problem
    yield from _arity(f"{where}.weight", loss.weight, "state")
    yield from _arity(f"{where}.normalize_by", loss.normalize_by, "slots")
    yield from _strings(where, "returns", loss.returns)
    if loss.minimize is not None and not (
        isinstance(loss.minimize, str) and loss.minimize and loss.minimize in term.parts
    ):
        parts = [part for part in term.parts if part]
        fix = f"returns names {quoted(parts)}; name one of these"
        if not parts:
            fix = f"returns is not given; name what the loss returns: returns=[{shown(loss.minimize)}, ...]"
        yield f"{where}: minimize is {shown(loss.minimize)}{suggest(loss.minimize, parts)}, but {fix}"
    yield from _strings(where, "trainers", loss.trainers)
    if loss.trainers is not None and not term.trainers:
        yield f"{where}: trainers is empty; name at least one, or leave it out to train all parameters"


BALANCED = "balanced"


def _class_weights(term: Term) -> Iterator[str]:
    weights, where = term.spec.class_weights, f"{term.where}: class_weights"
    if weights is None or (weights == BALANCED and term.labels):
        return
    if not term.labels:
        yield f"{where} need a label that holds class indices, and the loss takes none; name it with labels="
    elif not (isinstance(weights, Mapping) and weights) and not (
        isinstance(weights, tuple) and any(not is_finite_number(weight) or weight for weight in weights)
    ):
        near = suggest(weights, [BALANCED])
        valid = f'give "{BALANCED}", a number for each class, or {{class: number}}; not all may be 0'
        yield f"{where} is {shown(weights)}{near}; {valid}"
    else:
        for key, value in weights.items() if isinstance(weights, Mapping) else enumerate(weights):
            if not is_finite_number(key) or key != int(key) or key < 0:
                yield f"{where} has the key {shown(key)}; keys are class indices, whole numbers from 0"
            if not is_finite_number(value) or value < 0:
                yield f"{where}[{key}] is {shown(value)}; it must be a finite number of at least 0"


def _metric(metric: MetricTerm) -> Iterator[str]:
    spec, where = metric.spec, metric.where
    of_tensors = str(getattr(spec.metric, "__module__", "")).startswith(("torch.", "torchmetrics.", "mxnet."))
    is_updated = all(callable(getattr(spec.metric, method, None)) for method in ("update", "reset"))
    is_updated &= any(callable(getattr(spec.metric, method, None)) for method in ("compute", "get"))
    if isinstance(spec.metric, type):
        yield f"{where}: {spec.metric.__name__} is a class; give an instance: {spec.metric.__name__}()"
    elif (
        not isinstance(spec.metric, str)
        and (not callable(spec.metric) or (of_tensors and not hasattr(spec.metric, "update")))
        and not is_updated
    ):
        yield (
            f'{where}: {shown(spec.metric)} is not a metric; give a name, such as "accuracy", an EvalMetric, '
            "such as mx.metric.Accuracy(), or a function (labels, outputs) -> float of NumPy arrays"
        )
    if spec.sample_weight is not None and spec.transform is not None:
        yield f"{where}: sample_weight cannot be combined with transform=; let the function do both"
    if spec.transform is not None and not callable(spec.transform):
        yield f"{where}: transform: {shown(spec.transform)} cannot be called; give a function"
    if spec.mode is not None:
        yield from _choice(where, "mode", spec.mode, MODES)
    yield from _strings(where, "names", spec.names)
    for stage in listed(spec.stage) or (None,):
        yield from _choice(where, "stage", stage, STAGES)


def _choice(where: str, field: str, value: object, valid: Sequence[str]) -> Iterator[str]:
    if not isinstance(value, str) or value not in valid:
        yield f"{where}: {field} is {shown(value)}{suggest(value, valid)}; valid are {quoted(valid)}"


def _strings(where: str, field: str, value: Any) -> Iterator[str]:
    items = listed(value)
    for item in items:
        if not is_name(item):
            yield f"{where}: {field} holds {shown(item)}; give a list of strings {PRINTABLE}"
    for item, count in Counter(item for item in items if isinstance(item, str)).items():
        if count > 1:
            yield f"{where}: {field} names {quoted([item])} {count} times; give each its own name"


def _functions(declarations: Declarations) -> Iterator[str]:
    for field, parameters in (("forward", ("net", "slots")), ("batch_fn", ("batch",))):
        value = getattr(declarations, field)
        if value is not None and not callable(value):
            yield f"{field}: {shown(value)} cannot be called; give a function"
        yield from _arity(field, value, *parameters)
    evaluate: object = declarations.evaluate
    if evaluate is not None and not isinstance(evaluate, Declarations):
        yield f"evaluate: {shown(evaluate)} is not a TaskSpec; give the one for evaluation and prediction"
    elif isinstance(evaluate, Declarations) and evaluate.evaluate is not None:
        yield "evaluate: the TaskSpec for evaluation has an evaluate= of its own; leave that one out"
    if declarations.name is not None and not isinstance(declarations.name, str):
        yield f"name: {shown(declarations.name)} is not a string"


def _arity(where: str, function: object, *arguments: str) -> Iterator[str]:
    if callable(function):
        problem = arity_problem(where, function, arguments, fix=f"let it take ({', '.join(arguments)})")
        if problem:
            yield problem


def _never_computed(declarations: Declarations) -> Iterator[str]:
    for metric in declarations.metric_terms if declarations.evaluate is not None else ():
        if listed(metric.spec.stage) == (EVALUATE,):
            yield (
                f'{metric.where}: is for stage="evaluate", where the TaskSpec in evaluate= replaces this '
                "one; declare the metric there"
            )


def _colliding_figures(declarations: Declarations) -> Iterator[str]:
    producers: dict[str, list[str]] = {"loss": ["the objective"]} if declarations.terms else {}
    for term in declarations.terms:
        for figure in dict.fromkeys(term.figures):
            producers.setdefault(figure, []).append(term.where)
    for metric in declarations.metric_terms:
        figures = [f"{metric.key}.{name}" for name in listed(metric.spec.names) if is_name(name)]
        for figure in dict.fromkeys(figures or [metric.key]):
            producers.setdefault(figure, []).append(metric.where)
    for name, label in declarations.label_specs.items():
        if is_missable(label):
            producers.setdefault(coverage(name), []).append(f'labels["{name}"]')
    for figure, owners in producers.items():
        if len(owners) > 1:
            yield f'the figure "{figure}" is produced by {" and ".join(owners)}; rename one of them'
