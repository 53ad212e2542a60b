"""The net as a graph, as it runs in evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...engines.prediction import Signature
from ...spec import TaskSpec
from ...spec.checks.results import at_path, bind_outputs
from ...utils.errors import SpecError, raise_problems
from ...utils.protocols import Array, Net, Shape
from ...utils.text import last_line, quoted
from ...version import installed_versions
from ..compat import mx
from ..optim.parameters import named_parameters

BATCH = "N"  # stands for the size of the batch in a shape

OpenShape = tuple[int | str | None, ...]
"""A shape whose sizes may be open: ``"N"`` for the batch, None for an axis that differs between batches."""

InputSignature = Mapping[str, tuple[Shape, str]]
"""Shape and dtype of each input in a batch."""


def trace(net: Net, spec: TaskSpec, signatures: Sequence[Signature]) -> TracedNet:
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
    others = [f'"{n}" is {type(s).__name__}' for n, s in symbols.items() if not isinstance(s, mx.sym.Symbol)]
    if others:
        raise SpecError(_untraceable(net, f"the output {', '.join(others)}, not a symbol"))
    inputs = [name for name, variable in variables.items() if variable is not None]
    read = set(mx.sym.Group(list(symbols.values())).list_inputs())
    parameters = _parameter_values(net, read, inputs)
    batches = [{name: slot for name in inputs if (slot := signature[name])} for signature in signatures]
    # `+` of symbols needs equal shapes, but `+` of arrays broadcasts: a net that runs can fail here.
    with _as_spec_error(net, mx.base.MXNetError):
        inference = _Inference(symbols, parameters)
        # the others are of batches for which the net has raised an error
        batches = list(filter(inference.takes, batches)) or batches
        axes = [[len(shape) for shape, _ in signature.values()] for signature in batches]
        batches = [signature for signature, each in zip(batches, axes) if each == axes[-1]]
        input_types, output_types = _port_types(symbols, batches, inference)
    example = {name: tuple(shape) for name, (shape, _) in batches[-1].items()}
    unread = tuple(name for name in inputs if name not in read)
    structural = {p.name: (name, p) for name, p in named_parameters(net, {}).items() if p.name in parameters}
    names = {key: name for key, (name, _) in structural.items()}
    trained = tuple(key for key, (_, p) in structural.items() if p.grad_req != "null")
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


def _parameter_values(net: Net, read: set[str], inputs: Sequence[str]) -> dict[str, Array]:
    """Return the values of the parameters that a graph reads."""
    parameters = {parameter.name: parameter for parameter in net.collect_params().values()}
    used = {name: parameter for name, parameter in parameters.items() if name in read}
    if ambiguous := [name for name in inputs if name in parameters]:
        message = f"the inputs {quoted(ambiguous)} have the names of parameters; rename them in the TaskSpec"
    elif "self" in inputs:
        message = 'MXNet cannot infer shapes of an input named "self"; rename the input in the TaskSpec'
    elif foreign := sorted(read - parameters.keys() - set(inputs)):
        way_out = "make the Block that holds them a child of the net"
        message = f"the graph reads {quoted(foreign)}, which the net does not hold; {way_out}"
    elif unknown := [name for name, parameter in used.items() if parameter._data is None]:
        way_out = "fit, check or evaluate first, or give data: export(folder, data)"
        message = f"the parameters {quoted(unknown[:6])} have no values yet; {way_out}"
    else:
        return {name: parameter._reduce() for name, parameter in used.items()}
    raise ValueError(f"export: {message}")


def _split_symbols(result: Any) -> Any:
    """Replace each symbol with several outputs, such as that of ``F.split``, by a list, as for arrays."""
    if isinstance(result, Mapping):
        return {key: _split_symbols(item) for key, item in result.items()}
    if isinstance(result, (list, tuple)):
        return [_split_symbols(item) for item in result]
    if isinstance(result, mx.sym.Symbol) and len(result.list_outputs()) > 1:
        return list(result)
    return result


@dataclass(frozen=True)
class PortType:
    """Shape and dtype of an input or output; the shape is None if nothing is known about it."""

    shape: OpenShape | None
    dtype: str


@dataclass(frozen=True)
class TracedNet:
    """A net as a graph.

    `symbols` are the outputs, by the spec's names and in its order. `inputs` and `outputs` are the types of
    the spec's inputs and outputs, without inputs that are None. `parameters` are the values that the graph
    reads, by MXNet's own names, on the CPU: the mean over the devices. `example` has the inputs' shapes in
    one batch. No output depends on the inputs that are `unread`. `names` are the parameters' structural
    names, and `trained` are the parameters that receive gradients.
    """

    symbols: Mapping[str, mx.sym.Symbol]
    inputs: Mapping[str, PortType]
    outputs: Mapping[str, PortType]
    parameters: Mapping[str, Array]
    example: Mapping[str, Shape]
    unread: tuple[str, ...]
    names: Mapping[str, str]
    trained: tuple[str, ...]

    def grouped(self, names: Mapping[str, str] | None = None) -> mx.sym.Symbol:
        """Return all outputs as one symbol of identity nodes; `names` replace the spec's names."""
        named = {(names or {}).get(name, name): symbol for name, symbol in self.symbols.items()}
        return mx.sym.Group([mx.sym.identity(symbol, name=name) for name, symbol in named.items()])

    def description(self) -> dict[str, Any]:
        """Return what ``export.json`` says of inputs, outputs and versions."""
        inputs, outputs = (
            [{"name": n, "shape": port.shape and list(port.shape), "dtype": port.dtype} for n, port in ports]
            for ports in (self.inputs.items(), self.outputs.items())
        )
        return {
            "inputs": inputs,
            "outputs": outputs,
            "unread_inputs": list(self.unread),
            "versions": installed_versions(["mxnet"]),
        }


class _Inference:
    """Infers the shapes and dtypes of outputs; `parameters` are what they read besides the inputs."""

    def __init__(self, symbols: Mapping[str, mx.sym.Symbol], parameters: Mapping[str, Array]) -> None:
        self._group, self._parameters = mx.sym.Group(list(symbols.values())), parameters
        self._names = self._group.list_inputs()

    def shapes(self, inputs: Mapping[str, Shape]) -> list[Shape]:
        known = {**inputs, **{name: value.shape for name, value in self._parameters.items()}}
        return self._group.infer_shape_partial(**{name: known[name] for name in self._names})[1]

    def dtypes(self, inputs: Mapping[str, str]) -> list[str]:
        known = {**inputs, **{name: value.dtype for name, value in self._parameters.items()}}
        dtypes = self._group.infer_type(**{name: known[name] for name in self._names})[1]
        return [np.dtype(dtype).name for dtype in dtypes]

    def takes(self, signature: InputSignature) -> bool:
        with suppress(mx.base.MXNetError):
            self.shapes({name: shape for name, (shape, _) in signature.items()})
            return True
        return False


def _port_types(
    symbols: Mapping[str, mx.sym.Symbol], signatures: Sequence[InputSignature], inference: _Inference
) -> tuple[dict[str, PortType], dict[str, PortType]]:
    """Return the types of inputs and outputs; raises MXNetError if their shapes do not fit each other.

    `symbols` are the outputs. `signatures` are those of the inputs in one or several batches, with the
    samples along the first axis.
    """
    last = signatures[-1]
    samples = next(iter(last.values()))[0][0]

    def sized(signature: InputSignature, samples: int) -> dict[str, Shape]:
        return {name: (samples, *shape[1:]) for name, (shape, _) in signature.items()}

    input_shapes = [sized(signature, samples) for signature in signatures]
    output_shapes = list(map(inference.shapes, input_shapes))
    larger, more = output_shapes[-1], samples
    for size in (2 * samples, samples + 1):  # a net may only take an even number of samples
        with suppress(mx.base.MXNetError):
            larger, more = inference.shapes(sized(last, size)), size
    # If no output grows with the batch, the net was written for batches of one size. MXNet's signs for sizes
    # that it cannot infer are numbers below 1.
    is_unknown = any(not shape or min(shape) < 1 for shape in larger)
    batch = BATCH if larger != output_shapes[-1] or is_unknown else samples

    def open_size(size: int | str | None, size_of_larger: int) -> int | str | None:
        if size == size_of_larger != 0:
            return size
        return BATCH if (size, size_of_larger) == (samples, more) else None

    inputs = {
        name: PortType((batch, *_common_sizes([shapes[name] for shapes in input_shapes])[1:]), dtype)
        for name, (_, dtype) in last.items()
    }
    outputs = {}
    dtypes = inference.dtypes({name: dtype for name, (_, dtype) in last.items()})
    for i, (name, dtype) in enumerate(zip(symbols, dtypes)):
        sizes = _common_sizes([shapes[i] for shapes in output_shapes])
        outputs[name] = PortType(tuple(map(open_size, sizes, larger[i])) or None, dtype)
    return inputs, outputs


def _common_sizes(shapes: Sequence[Shape]) -> OpenShape:
    """Return the sizes that are equal in all shapes, None for the others."""
    return tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes))
