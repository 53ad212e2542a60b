"""From a net to a graph: it is called with symbols, as when it evaluates, and stays as it is."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, Mapping, Sequence

from ...checks import at_path, bind_outputs
from ...errors import SpecError, last_line, names, raise_problems
from ...spec import TaskSpec
from ..compat import mx
from .graph import Form, Graph, described

__all__ = ["trace"]


def trace(net: Any, spec: TaskSpec, forms: Sequence[Form]) -> Graph:
    """Call the net with symbols, as it is when evaluating; nothing of it changes.

    Parameters
    ----------
    net : Block
        Initialised, shapes known.
    spec : TaskSpec
        Its inputs, outputs and `forward`; `evaluate` is not looked at.
    forms : sequence of mapping of str to (shape, dtype) or None
        What each input looked like in one batch or more, the samples along the first axis; sizes in which
        they differ stay open. None: the net is called with None there.

    Returns
    -------
    Graph
        With inputs and outputs of the spec's names.

    Raises
    ------
    SpecError
        The net cannot be called with symbols, or does not return what the spec declares.
    ValueError
        It uses parameters that have no values, or that the net does not hold.
    """
    variables = {name: None if forms[-1][name] is None else mx.sym.var(name) for name in spec.inputs}
    with _tracing(net), mx.autograd.pause(train_mode=False), mx.name.NameManager():
        called = net(*variables.values()) if spec.forward is None else spec.forward(net, variables)
        result = _taken_apart(called)
    paths, problems = bind_outputs(spec.outputs, result, "the net that is exported")
    raise_problems(problems)
    heads = {name: at_path(result, paths[name]) for name in spec.output_names}
    _check_symbols(net, heads)
    given = [name for name in spec.inputs if variables[name] is not None]
    read = set(mx.sym.Group(list(heads.values())).list_inputs())
    parameters = _values(net, read, given)
    with _tracing(net, mx.base.MXNetError):  # + adds symbols of one shape only, but broadcasts arrays
        inputs, outputs = described(heads, [{n: form[n] for n in given} for form in forms], parameters)
    example = {name: tuple(forms[-1][name][0]) for name in given}
    unread = tuple(name for name in given if name not in read)
    return Graph(heads, inputs, outputs, parameters, example, unread)


@contextmanager
def _tracing(net: Any, kind: type[Exception] = Exception) -> Iterator[None]:
    """Say what to do about a net, or a `forward`, that works on arrays alone."""
    try:
        yield
    except kind as error:
        raise SpecError(_untraceable(net, f"{type(error).__name__}: {last_line(error)}")) from error


def _untraceable(net: Any, why: str) -> str:
    return (
        f"export: {type(net).__name__} cannot be made a graph, as it does not work on symbols ({why}); make "
        "it a HybridBlock whose hybrid_forward uses F's operators alone, without arrays' shapes or values, "
        "or export a part that is one: TaskSpec(evaluate=TaskSpec(..., forward=...))"
    )


def _check_symbols(net: Any, heads: Mapping[str, Any]) -> None:
    wrong = [f'"{name}" is {type(head).__name__}' for name, head in heads.items() if not _is_symbol(head)]
    if wrong:
        raise SpecError(_untraceable(net, f"the output {', '.join(wrong)}, no symbol"))


def _values(net: Any, read: set[str], given: Sequence[str]) -> dict[str, Any]:
    """Return the values of the parameters that a graph reads."""
    found = {parameter.name: parameter for parameter in net.collect_params().values()}
    clashing = [name for name in given if name in found]
    if clashing:
        raise ValueError(
            f"export: the inputs {names(clashing)} bear the names of parameters; rename them in the TaskSpec"
        )
    foreign = [name for name in sorted(read) if name not in found and name not in given]
    if foreign:
        raise ValueError(
            f"export: the graph reads {names(foreign)}, which the net does not hold; "
            "make the Block that does a child of the net"
        )
    used = {name: parameter for name, parameter in found.items() if name in read}
    bare = [name for name, parameter in used.items() if parameter._data is None]
    if bare:
        raise ValueError(
            f"export: the parameters {names(bare[:6])} have no values yet; fit, check or evaluate first, or "
            "give data: export(folder, data)"
        )
    return {name: parameter._reduce() for name, parameter in used.items()}


def _taken_apart(result: Any) -> Any:
    """Return the result with every symbol of several outputs (``F.split``) as the list it is for arrays."""
    if isinstance(result, Mapping):
        return {key: _taken_apart(item) for key, item in result.items()}
    if isinstance(result, (list, tuple)):
        return [_taken_apart(item) for item in result]
    if _is_symbol(result) and len(result.list_outputs()) > 1:
        return list(result)
    return result


def _is_symbol(value: Any) -> bool:
    return isinstance(value, mx.sym.Symbol)
