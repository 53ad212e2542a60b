"""Trace a net by calling it with symbols, in evaluation mode. The net itself does not change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ...checks import at_path, bind_outputs
from ...errors import SpecError, last_line, quoted, raise_problems
from ...protocols import Array, Net
from ...spec import TaskSpec
from ..compat import mx
from ..data.splitter import SlotSignature
from ..optim.parameters import named_parameters
from .traced_net import TracedNet, fitting, port_types


def trace(net: Net, spec: TaskSpec, signatures: Sequence[SlotSignature]) -> TracedNet:
    """Return the net as a graph with the names of the spec, whose `evaluate` is ignored.

    The net must be initialised. `signatures` are those of its inputs in one or several batches, with the
    samples along the first axis. Sizes that differ between them are left open. Signatures that the net does
    not take, or with another number of axes than the last one, are left out. The net is called with None
    for inputs that are None. Raises SpecError if the net cannot be called with symbols, or does not return
    what the spec declares, and ValueError if it uses parameters that have no values, or that it does not
    hold.
    """
    variables = {name: None if signatures[-1][name] is None else mx.sym.var(name) for name in spec.inputs}
    with _as_spec_error(net, Exception), mx.autograd.pause(train_mode=False), mx.name.NameManager():
        result = net(*variables.values()) if spec.forward is None else spec.forward(net, variables)
        result = _split_symbols(result)
    paths, problems = bind_outputs(spec.outputs, result, "the net that is exported")
    raise_problems(problems)
    symbols = {name: at_path(result, paths[name]) for name in spec.output_names}
    _check_symbols(net, symbols)
    inputs = [name for name, variable in variables.items() if variable is not None]
    read = set(mx.sym.Group(list(symbols.values())).list_inputs())
    parameters = _parameter_values(net, read, inputs)
    batches = [{name: slot for name in inputs if (slot := signature[name])} for signature in signatures]
    # `+` of symbols needs equal shapes, but `+` of arrays broadcasts: a net that runs can fail here.
    with _as_spec_error(net, mx.base.MXNetError):
        arrays = fitting(symbols, batches, parameters)
        input_types, output_types = port_types(symbols, arrays, parameters)
    example = {name: tuple(shape) for name, (shape, _) in arrays[-1].items()}
    unread = tuple(name for name in inputs if name not in read)
    structural = {p.name: (name, p) for name, p in named_parameters(net, {}).items() if p.name in parameters}
    names = {own: name for own, (name, _) in structural.items()}
    trained = tuple(own for own, (_, p) in structural.items() if p.grad_req != "null")
    return TracedNet(symbols, input_types, output_types, parameters, example, unread, names, trained)


@contextmanager
def _as_spec_error(net: Net, kind: type[Exception]) -> Iterator[None]:
    """Raise errors of a net that only works on arrays as SpecError, with the way out."""
    try:
        yield
    except kind as error:
        raise SpecError(_untraceable(net, f"{type(error).__name__}: {last_line(error)}")) from error


def _untraceable(net: Net, reason: str) -> str:
    return (
        f"export: {type(net).__name__} cannot be made a graph, because it does not work on symbols "
        f"({reason}); make it a HybridBlock whose hybrid_forward uses only F's operators, without arrays' "
        "shapes or values, or export a part that is one: TaskSpec(evaluate=TaskSpec(..., forward=...))"
    )


def _check_symbols(net: Net, outputs: Mapping[str, Any]) -> None:
    others = [f'"{name}" is {type(out).__name__}' for name, out in outputs.items() if not _is_symbol(out)]
    if others:
        raise SpecError(_untraceable(net, f"the output {', '.join(others)}, not a symbol"))


def _parameter_values(net: Net, read: set[str], inputs: Sequence[str]) -> dict[str, Array]:
    """Return the values of the parameters that a graph reads."""
    parameters: dict[str, mx.gluon.Parameter] = {
        parameter.name: parameter for parameter in net.collect_params().values()
    }
    ambiguous = [name for name in inputs if name in parameters]
    if ambiguous:
        raise ValueError(
            f"export: the inputs {quoted(ambiguous)} have the names of parameters; rename them in the "
            "TaskSpec"
        )
    if "self" in inputs:
        raise ValueError(
            'export: MXNet cannot infer shapes of an input named "self"; rename the input in the TaskSpec'
        )
    foreign = [name for name in sorted(read) if name not in parameters and name not in inputs]
    if foreign:
        raise ValueError(
            f"export: the graph reads {quoted(foreign)}, which the net does not hold; "
            "make the Block that holds them a child of the net"
        )
    used = {name: parameter for name, parameter in parameters.items() if name in read}
    uninitialized = [name for name, parameter in used.items() if parameter._data is None]
    if uninitialized:
        raise ValueError(
            f"export: the parameters {quoted(uninitialized[:6])} have no values yet; fit, check or evaluate "
            "first, or give data: export(folder, data)"
        )
    return {name: parameter._reduce() for name, parameter in used.items()}


def _split_symbols(result: Any) -> Any:
    """Replace each symbol with several outputs, such as that of ``F.split``, by a list, as for arrays."""
    if isinstance(result, Mapping):
        return {key: _split_symbols(item) for key, item in result.items()}
    if isinstance(result, (list, tuple)):
        return [_split_symbols(item) for item in result]
    if _is_symbol(result) and len(result.list_outputs()) > 1:
        return list(result)
    return result


def _is_symbol(value: Any) -> bool:
    return isinstance(value, mx.sym.Symbol)
