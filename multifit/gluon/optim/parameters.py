"""The parameters of a net and its losses: their names, how to select some of them, and initialisation."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...spec.checks.trainers import select_by_pattern, selects_nothing
from ...utils.errors import Problem, note_call
from ...utils.protocols import Context, Parameter
from ...utils.text import quoted, shown, suggest
from ..compat import mx
from ..data.devices import placed_on

Rules = list[tuple[Collection[str], Any]]
"""Names of parameters, each group with its initializer."""


class NamedParameters(dict[str, mx.gluon.Parameter]):
    """Parameters by name, each once; `other_names` are the further names of shared ones, with that name."""

    def __init__(self) -> None:
        super().__init__()
        self.other_names: dict[str, str] = {}


def named_parameters(net: mx.gluon.Block, losses: Mapping[str, object]) -> NamedParameters:
    """Return all parameters by name, each once.

    The parameters of a net have their structural names (``body.0.weight``); a SymbolBlock keeps its flat
    names. The parameters of losses that are Blocks are named ``losses.<key>.<name>``.
    """
    all_names = _of_block(net, "")
    for key, loss in losses.items():
        if isinstance(loss, mx.gluon.Block):
            all_names.update(_of_block(loss, f"losses.{key}."))
    named, first_names = NamedParameters(), dict[int, str]()
    for name, parameter in all_names.items():
        first = first_names.setdefault(id(parameter), name)
        if first == name:
            named[name] = parameter
        else:
            named.other_names[name] = first
    return named


def real_dtype(parameters: Iterable[Parameter]) -> str:
    """Return the dtype of the real numbers that go into a net: float64 if all its parameters are."""
    dtypes = {np.dtype(parameter.dtype).name for parameter in parameters}
    return "float64" if dtypes == {"float64"} else "float32"


def _of_block(block: mx.gluon.Block, prefix: str) -> dict[str, mx.gluon.Parameter]:
    named = {prefix + name: p for name, p in block._collect_params_with_prefix().items()}
    known = {id(p) for p in named.values()}
    # parameters from `block.params` that are not attributes of the block have no structural name
    named.update({prefix + name: p for name, p in block.collect_params().items() if id(p) not in known})
    return named


def trainable(parameters: Mapping[str, mx.gluon.Parameter]) -> dict[str, mx.gluon.Parameter]:
    """Return the parameters that receive gradients."""
    return {name: p for name, p in parameters.items() if p.grad_req != "null"}


def learnable(parameters: Mapping[str, mx.gluon.Parameter]) -> dict[str, mx.gluon.Parameter]:
    """Return the parameters that receive gradients, or would if their ``grad_req`` were changed."""
    return {
        name: p
        for name, p in parameters.items()
        if p._differentiable and not isinstance(p, mx.gluon.Constant)
    }


def statistics(parameters: Mapping[str, mx.gluon.Parameter]) -> dict[str, mx.gluon.Parameter]:
    """Return the parameters with values but without gradients, such as BatchNorm's running statistics."""
    return {name: p for name, p in parameters.items() if not p._differentiable and p._data is not None}


def select(
    where: str,
    params: Any,
    parameters: Mapping[str, Parameter],
    every: Mapping[str, Parameter] | None = None,
) -> tuple[list[str], list[Problem]]:
    """Return the names of the parameters that a pattern, Block, ParameterDict or Parameter selects.

    A pattern must match a whole name (``re.fullmatch``). `parameters` are those to select from, by structural
    name, and `every` are all parameters, if those are only the trainable ones. `where`, such as ``frozen``,
    says in messages where the selection was declared. Also returns the problems found.
    """
    every = parameters if every is None else every
    if isinstance(params, str):
        others = getattr(every, "other_names", {})
        return select_by_pattern(where, params, parameters, every, others)
    if isinstance(params, mx.gluon.Block):
        params, what = params.collect_params(), f"the Block {params.name}"
    elif isinstance(params, mx.gluon.ParameterDict):
        what = "the ParameterDict"
    elif isinstance(params, mx.gluon.Parameter):
        params, what = {params.name: params}, f"the parameter {params.name}"
    else:
        way_out = "give a pattern (several are joined by |), a Block or a ParameterDict"
        return [], [Problem("trainer", f"{where}: {shown(params)} selects no parameters; {way_out}")]
    members = {id(p) for p in params.values()}
    names = [name for name, p in parameters.items() if id(p) in members]
    constant = [name for name, p in every.items() if id(p) in members]
    return names, [] if names else [selects_nothing(where, what, parameters, constant)]


def initialize(
    parameters: Mapping[str, mx.gluon.Parameter],
    contexts: Sequence[Context],
    initializer: Any,
    log_once: Callable[[str], None],
) -> list[Problem]:
    """Initialise the parameters that are not initialised yet, and place all parameters on `contexts`.

    `parameters` are named by structure. In a mapping of patterns to initializers, the first pattern that
    matches a name is used; None is Gluon's default. `log_once` is called with a line to log if the
    initializer is not used. Returns the problems found.
    """
    rules, problems = _rules(initializer, parameters)
    if problems:
        return problems
    uninitialized = [name for name, parameter in parameters.items() if not placed_on([parameter])]
    for name in uninitialized:
        value = next((value for names, value in rules if name in names), None)
        parameter = parameters[name]
        if any(length < 0 for length in parameter.shape or ()):
            message = f'net: "{name}" has the shape {tuple(parameter.shape)}; give its layer sizes above 0'
            problems.append(Problem("spec", message))
            continue
        try:
            _initialize(parameter, value, contexts, isinstance(initializer, Mapping))
        except Exception as error:
            if isinstance(value, mx.init.Initializer) and not type(value).__module__.startswith("mxnet."):
                note_call(
                    error, f'initializer: {type(value).__name__}, for "{name}" {tuple(parameter.shape)}'
                )
                raise
            name_of_rule = value if isinstance(value, str) else type(value).__name__
            what = f'"{name}" {tuple(parameter.shape)}: {error}'
            message = f"initializer: {name_of_rule} cannot fill {what}; give it to others only"
            problems.append(Problem("trainer", message))
    for parameter in parameters.values() if not problems else ():
        if list(parameter.list_ctx()) != list(contexts):
            parameter.reset_ctx(contexts)
    if initializer is not None and not uninitialized:
        log_once("the net is initialised already: initializer= is not used")
    return problems


def _rules(initializer: Any, parameters: Mapping[str, mx.gluon.Parameter]) -> tuple[Rules, list[Problem]]:
    if not isinstance(initializer, Mapping):
        return [(parameters, initializer)], _invalid("initializer", initializer)
    rules: Rules = []
    problems: list[Problem] = []
    for pattern, value in initializer.items():
        where = f"initializer[{quoted([pattern])}]"
        names, wrong = select(where, pattern, parameters)
        wrong += _invalid(where, value)
        problems += wrong
        if not wrong:
            rules.append((names, mx.init.create(value) if isinstance(value, str) else value))
    return rules, problems


def _invalid(where: str, value: object) -> list[Problem]:
    if value is None or isinstance(value, mx.init.Initializer):
        return []
    known = sorted(mx.registry.get_registry(mx.init.Initializer))
    if isinstance(value, str) and value.lower() in known:
        return []
    near, valid = suggest(value, known) if isinstance(value, str) else "", ", ".join(known)
    message = f"{where}: {shown(value)} is not an initializer{near}; give an instance of one of {valid}"
    return [Problem("trainer", message)]


def _initialize(
    parameter: mx.gluon.Parameter, value: Any, contexts: Sequence[Context], by_pattern: bool
) -> None:
    # An initializer given by pattern is meant for just these parameters, and overrides the parameter's own.
    # If it cannot fill vectors, biases are left to Gluon's rule, so that "encoder.*": Xavier() works.
    matrices_only = (mx.init.Xavier, mx.init.Orthogonal, mx.init.Bilinear)
    is_vector = parameter.shape is not None and len(parameter.shape) < 2
    if by_pattern and value is not None and not (is_vector and isinstance(value, matrices_only)):
        parameter.initialize(init=value, ctx=contexts)
    else:
        parameter.initialize(ctx=contexts, default_init=mx.init.Uniform() if value is None else value)
