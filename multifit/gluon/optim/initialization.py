"""Initialise the parameters of a net, and put them on the devices of the run."""

from __future__ import annotations

import re
from typing import Any, Callable, Mapping, Sequence

from ...errors import Problem, note_call, quoted, shown, suggest
from ...protocols import Context
from ..compat import mx
from ..data.devices import placed_on
from .parameters import select

Rules = list[tuple["re.Pattern[str]", Any]]
"""Patterns of parameter names, each with its initializer."""


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
        value = next((value for pattern, value in rules if pattern.fullmatch(name)), None)
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
            kind = value if isinstance(value, str) else type(value).__name__
            what = f'"{name}" {tuple(parameter.shape)}: {error}'
            message = f"initializer: {kind} cannot fill {what}; give it to others only"
            problems.append(Problem("trainer", message))
    for parameter in parameters.values() if not problems else ():
        if list(parameter.list_ctx()) != list(contexts):
            _move(parameter, contexts)
    if initializer is not None and not uninitialized:
        log_once("the net is initialised already: initializer= is not used")
    return problems


def _move(parameter: mx.gluon.Parameter, contexts: Sequence[Context]) -> None:
    if parameter._stype == "default" or not parameter._data or parameter._trainer is not None:
        parameter.reset_ctx(contexts)
    else:  # MXNet reads sparse parameters through a trainer; without one, each array has all rows
        with mx.autograd.pause():
            parameter._init_impl(parameter._data[0], contexts)


def _rules(initializer: Any, parameters: Mapping[str, mx.gluon.Parameter]) -> tuple[Rules, list[Problem]]:
    if not isinstance(initializer, Mapping):
        return [(re.compile(".*", re.DOTALL), initializer)], _invalid("initializer", initializer)
    problems = []
    for pattern, value in initializer.items():
        if isinstance(pattern, str):
            where = f"initializer[{quoted([pattern])}]"
            problems += select(where, pattern, parameters)[1] + _invalid(where, value)
        else:
            message = f"initializer: {shown(pattern)} is not a pattern; give a string"
            problems.append(Problem("trainer", message))
    if problems:
        return [], problems
    rules = [(re.compile(pattern), value) for pattern, value in initializer.items()]
    return [(pattern, mx.init.create(v) if isinstance(v, str) else v) for pattern, v in rules], []


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
