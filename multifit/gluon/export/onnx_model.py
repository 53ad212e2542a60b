"""Convert a traced net to an ONNX model, with mxnet's own converter."""

import importlib
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...utils.text import last_line, quoted
from ..compat import mx
from .traced_net import PortType, TracedNet

# The newest operator set that mxnet 1.9.1 knows, and the file format that came with it. By default, mxnet's
# converter labels the model with the newest set of the installed onnx, in which some operators take other
# arguments (ReduceMean's axes, from 18 on).
OPSET, IR_VERSION = 13, 7

# Once converted, it also suppresses boxes of other classes, and pads with other values in another order.
WRONGLY_CONVERTED = {"_contrib_box_nms"}

INSTALL = 'pip install "onnx<1.19"'
WAY_OUT = (
    'export with format="gluon", or name outputs before it and leave the rest out with '
    "TaskSpec(evaluate=TaskSpec(..., forward=...))"
)


def require_onnx() -> Any:
    """Return the onnx module; raises ImportError if it is not installed, or too new for mxnet's converter."""
    try:
        onnx = importlib.import_module("onnx")
    except ImportError as error:
        raise ImportError(
            f"exporting to ONNX needs onnx, which is not installed ({error}): {INSTALL}"
        ) from error
    try:
        importlib.import_module("onnx.mapping")
    except ImportError:
        raise ImportError(
            f"mxnet {mx.__version__} cannot use onnx {onnx.__version__}: its converter needs onnx.mapping, "
            f"which was removed after onnx 1.18: {INSTALL}"
        ) from None
    return onnx


def onnx_model(net: TracedNet) -> Any:
    """Convert a traced net to an ``onnx.ModelProto``.

    Its inputs and outputs have the spec's names and order. An output with the name of an input is called
    ``<name>_output``, since ONNX has one name space for both. The first axis is ``N`` if the net takes
    batches of any size. Raises ValueError if mxnet's converter lacks an operator, or fails, and ImportError
    as :func:`require_onnx` does.
    """
    onnx = require_onnx()
    converted_names = {name: f"multifit_output_{i}_" for i, name in enumerate(net.symbols)}
    symbol = net.grouped(converted_names)
    _check_operators(net, symbol)
    try:
        with _checked_by_opset(onnx):
            onnx_graph = _convert(onnx, net, symbol)
            _rename_ports(onnx_graph, converted_names, net)
            model = onnx.helper.make_model(
                onnx_graph,
                producer_name="multifit",
                ir_version=IR_VERSION,
                opset_imports=[onnx.helper.make_opsetid("", OPSET)],
            )
            onnx.checker.check_model(model)
    except Exception as error:
        raise ValueError(
            f"ONNX: mxnet's converter failed ({type(error).__name__}: {last_line(error)}); {WAY_OUT}"
        ) from error
    return model


def _convert(onnx: Any, net: TracedNet, symbol: mx.sym.Symbol) -> Any:
    inputs = [name for name in symbol.list_inputs() if name not in net.parameters]
    tensor_dtype = onnx.helper.np_dtype_to_tensor_dtype
    with _silenced():
        onnx_graph = _converter().create_onnx_graph_proto(
            symbol,
            dict(net.parameters),
            [net.example[name] for name in inputs],
            [tensor_dtype(np.dtype(net.inputs[name].dtype)) for name in inputs],
            opset_version=OPSET,
            dynamic=True,
        )
    onnx_graph.name = "multifit"
    return onnx_graph


def _rename_ports(onnx_graph: Any, converted_names: Mapping[str, str], net: TracedNet) -> None:
    """Give a converted graph's inputs and outputs the spec's names, order and shapes.

    The graph is changed in place. `converted_names` are the names that the spec's outputs have in it.
    """
    # ONNX has one name space for inputs and outputs.
    final = {name: f"{name}_output" if name in net.inputs else name for name in net.outputs}
    new_names = {converted_names[name]: final[name] for name in net.outputs}
    # Other values within the graph must not have an output's name.
    new_names.update({name: f"multifit_inner_{i}_" for i, name in enumerate(final.values())})
    for node in onnx_graph.node:
        node.input[:] = [new_names.get(name, name) for name in node.input]
        node.output[:] = [new_names.get(name, name) for name in node.output]
    used = {name for node in onnx_graph.node for name in node.input} | set(final.values())
    for tensor in list(onnx_graph.initializer):
        tensor.name = new_names.get(tensor.name, tensor.name)
        if tensor.name not in used:
            # the converter leaves unused ones, of which onnxruntime warns
            onnx_graph.initializer.remove(tensor)
    del onnx_graph.input[:], onnx_graph.output[:]
    onnx_graph.input.extend(_value_info(name, type_) for name, type_ in net.inputs.items())
    onnx_graph.output.extend(_value_info(final[name], type_) for name, type_ in net.outputs.items())


def _value_info(name: str, type_: PortType) -> Any:
    helper = importlib.import_module("onnx.helper")
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(type_.dtype))
    return helper.make_tensor_value_info(name, dtype, type_.shape)


def _converter() -> Any:
    return mx.onnx.mx2onnx._export_onnx.MXNetGraph()


@contextmanager
def _silenced() -> Iterator[None]:
    """Suppress onnx's warnings about mxnet, and what the converter logs to the root logger.

    The converter's calls of `logging.warning` would also set up the process's logging. What matters in these
    messages has been raised as an error before.
    """
    root, handler = logging.getLogger(), logging.NullHandler()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.setLevel(level)
        root.removeHandler(handler)


@contextmanager
def _checked_by_opset(onnx: Any) -> Iterator[None]:
    """Let onnx check nodes with OPSET; the converter asks for the newest operator set."""
    context = onnx.checker.DEFAULT_CONTEXT
    newest = context.opset_imports
    context.opset_imports = {"": OPSET}
    try:
        yield
    finally:
        context.opset_imports = newest


def _check_operators(net: TracedNet, symbol: mx.sym.Symbol) -> None:
    """Raise ValueError for operators that the converter lacks, or converts wrongly."""
    registry = _converter().registry_
    known = {op for version, ops in registry.items() if version <= OPSET for op in ops} - WRONGLY_CONVERTED
    large = _nodes_of_more_than_matrices(net, symbol)
    lacking: dict[str, list[str]] = {}
    for node in json.loads(symbol.tojson())["nodes"]:
        # dot becomes ONNX's MatMul, which is a different product for arrays of more than two axes
        if node["op"] not in known or (node["op"] == "dot" and node["name"] in large):
            lacking.setdefault(node["op"], []).append(node["name"])
    if lacking:
        operators = ", ".join(f'"{op}" (at {quoted(nodes[:3])})' for op, nodes in lacking.items())
        raise ValueError(f"ONNX: mxnet {mx.__version__} has no correct converter for {operators}; {WAY_OUT}")


def _nodes_of_more_than_matrices(net: TracedNet, symbol: mx.sym.Symbol) -> set[str]:
    """Return the names of the nodes whose output has more than two axes."""
    nodes = symbol.get_internals()
    known = {**net.example, **{name: value.shape for name, value in net.parameters.items()}}
    shapes = nodes.infer_shape_partial(**{name: known[name] for name in symbol.list_inputs()})[1]
    return {node.name for node, shape in zip(nodes, shapes) if len(shape) > 2}
