"""Parameters by their structural names, as ``save_parameters`` writes them, and their initialisation."""

from __future__ import annotations

import re
from typing import Any, Callable, Iterable, Mapping, Sequence

from ...errors import Problem, shown, suggest
from ..compat import mx

__all__ = ["initialize", "listing", "named_parameters", "selected", "trainable"]


def named_parameters(net: Any, losses: Mapping[str, Any]) -> dict[str, Any]:
    """Return all parameters by name, each once.

    Parameters
    ----------
    net : Block
        Its parameters bear their structural names (``body.0.weight``); a SymbolBlock keeps its flat ones.
    losses : mapping of str to callable
        Losses that are Blocks may have parameters too: ``losses.<key>.<name>``.
    """
    found = _of_block(net, "")
    for key, loss in losses.items():
        if isinstance(loss, mx.gluon.Block):
            found.update(_of_block(loss, f"losses.{key}."))
    names, seen = {}, set()
    for name, parameter in found.items():
        if id(parameter) not in seen:  # a shared parameter bears its first name
            seen.add(id(parameter))
            names[name] = parameter
    return names


def _of_block(block: Any, prefix: str) -> dict[str, Any]:
    found = {prefix + name: p for name, p in block._collect_params_with_prefix().items()}
    known = {id(p) for p in found.values()}
    # parameters that were got from `block.params` without becoming an attribute have no structural name
    found.update({prefix + name: p for name, p in block.collect_params().items() if id(p) not in known})
    return found


def trainable(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return those parameters that receive gradients."""
    return {name: p for name, p in parameters.items() if p.grad_req != "null"}


def selected(where: str, params: Any, parameters: Mapping[str, Any]) -> tuple[list[str], list[Problem]]:
    """Return the names of the parameters that a pattern, Block or ParameterDict selects.

    A pattern must match a whole name (``re.fullmatch``).
    """
    if isinstance(params, str):
        try:
            pattern = re.compile(params)
        except re.error as error:
            return [], [Problem("trainer", f'{where}: "{params}" is no regular expression: {error}')]
        found = [name for name in parameters if pattern.fullmatch(name)]
        return found, [] if found else [_nothing(where, f'the pattern "{params}"', parameters, pattern)]
    if isinstance(params, mx.gluon.Block):
        params, what = params.collect_params(), f"the Block {params.name}"
    elif isinstance(params, mx.gluon.ParameterDict):
        what = "the ParameterDict"
    elif isinstance(params, mx.gluon.Parameter):
        params, what = {params.name: params}, f"the parameter {params.name}"
    else:
        way = "give a pattern (several are joined by |), a Block or a ParameterDict"
        return [], [Problem("trainer", f"{where}: {shown(params)} selects no parameters; {way}")]
    held = {id(p) for p in params.values()}
    found = [name for name, p in parameters.items() if id(p) in held]
    return found, [] if found else [_nothing(where, what, parameters)]


def listing(names: Sequence[str]) -> str:
    """Return the first names, quoted, and how many more there are."""
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(f'"{name}"' for name in names[:6]) + more


def _nothing(where: str, what: str, parameters: Mapping[str, Any], pattern: Any = None) -> Problem:
    if not parameters:
        return Problem("trainer", f"{where}: the net has no parameters to train")
    text = f"{where}: {what} selects none of the net's parameters"
    if pattern is not None and any(pattern.match(name) for name in parameters):
        text += f' (did you mean "{pattern.pattern}.*"?)'
    elif pattern is not None:
        text += suggest(pattern.pattern, parameters)
    whole = "a pattern must match a whole name, such as " if pattern is not None else "its parameters are "
    return Problem("trainer", f"{text}; {whole}{listing(list(parameters))}")


def initialize(
    parameters: Mapping[str, Any], contexts: list[Any], initializer: Any, notice: Callable[[str], None]
) -> list[Problem]:
    """Initialise what is not initialised, and move what lives elsewhere to `contexts`.

    Parameters
    ----------
    initializer : Initializer, str, mapping of pattern to Initializer, or None
        The first pattern that matches a name wins; None is Gluon's default.
    """
    rules, problems = _rules(initializer, parameters)
    if problems:
        return problems
    fresh = [name for name, p in parameters.items() if not _is_initialized(p)]
    for name in fresh:
        init, parameter = _first(rules, name), parameters[name]
        try:
            _initialize(parameter, init, contexts, isinstance(initializer, Mapping))
        except Exception as error:
            kind = init if isinstance(init, str) else type(init).__name__
            what = f'"{name}" {tuple(parameter.shape)}: {error}'
            problems.append(
                Problem("trainer", f"initializer: {kind} cannot fill {what}; give it to others only")
            )
    for parameter in parameters.values() if not problems else ():
        if list(parameter.list_ctx()) != contexts:
            parameter.reset_ctx(contexts)
    if initializer is not None and not fresh:
        notice("the net is initialised already: initializer= is not used")
    return problems


def _rules(initializer: Any, parameters: Mapping[str, Any]) -> tuple[list[tuple[Any, Any]], list[Problem]]:
    if not isinstance(initializer, Mapping):
        return [(re.compile(".*", re.DOTALL), initializer)], _no_initializer("initializer", initializer)
    problems = []
    for pattern, value in initializer.items():
        if isinstance(pattern, str):
            where = f'initializer["{pattern}"]'
            problems += selected(where, pattern, parameters)[1] + _no_initializer(where, value)
        else:
            problems.append(Problem("trainer", f"initializer: {shown(pattern)} is no pattern; give a string"))
    if problems:
        return [], problems
    return [(re.compile(pattern), _made(value)) for pattern, value in initializer.items()], []


def _made(value: Any) -> Any:
    return mx.init.create(value) if isinstance(value, str) else value


def _no_initializer(where: str, value: Any) -> list[Problem]:
    if value is None or isinstance(value, mx.init.Initializer):
        return []
    known = sorted(mx.registry.get_registry(mx.init.Initializer))
    if isinstance(value, str) and value.lower() in known:
        return []
    near, valid = suggest(value, known) if isinstance(value, str) else "", ", ".join(known)
    message = f"{where}: {shown(value)} is no initializer{near}; give an instance of one of {valid}"
    return [Problem("trainer", message)]


def _first(rules: Iterable[tuple[Any, Any]], name: str) -> Any:
    return next((value for pattern, value in rules if pattern.fullmatch(name)), None)


def _initialize(parameter: Any, init: Any, contexts: list[Any], by_pattern: bool) -> None:
    # By pattern, an initializer is meant for just these parameters and wins over the parameter's own; those
    # that cannot fill a vector leave biases to Gluon's rule: "encoder.*": Xavier() then means what it says.
    matrices_only = (mx.init.Xavier, mx.init.Orthogonal, mx.init.Bilinear)
    vector = parameter.shape is not None and len(parameter.shape) < 2
    if by_pattern and init is not None and not (vector and isinstance(init, matrices_only)):
        parameter.initialize(init=init, ctx=contexts)
    else:
        parameter.initialize(ctx=contexts, default_init=mx.init.Uniform() if init is None else init)


def _is_initialized(parameter: Any) -> bool:
    try:
        parameter.list_ctx()
    except RuntimeError:
        return False
    return True
