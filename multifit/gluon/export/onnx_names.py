"""Give an ONNX graph's inputs and outputs the spec's names, order and shapes."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from .traced_net import PortType, TracedNet


def rename_ports(onnx_graph: Any, converted_names: Mapping[str, str], net: TracedNet) -> None:
    """Change a converted graph in place.

    Parameters
    ----------
    onnx_graph : onnx.GraphProto
        As mxnet's converter returns it.
    converted_names : mapping of str to str
        The name in `onnx_graph` of each output of the spec.
    net : TracedNet
        What inputs and outputs are.
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
            onnx_graph.initializer.remove(tensor)  # the converter leaves some, and onnxruntime warns
    del onnx_graph.input[:], onnx_graph.output[:]
    onnx_graph.input.extend(_value_info(name, type_) for name, type_ in net.inputs.items())
    onnx_graph.output.extend(_value_info(final[name], type_) for name, type_ in net.outputs.items())


def _value_info(name: str, type_: PortType) -> Any:
    helper = importlib.import_module("onnx.helper")
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(type_.dtype))
    return helper.make_tensor_value_info(name, dtype, type_.shape)
