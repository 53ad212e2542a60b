"""Names and shapes of an ONNX graph's inputs and outputs, as the spec has them."""

from __future__ import annotations

import importlib
from typing import Any, Mapping

import numpy as np

from .graph import Array, Graph

__all__ = ["rename"]


def rename(converted: Any, heads: Mapping[str, str], graph: Graph) -> None:
    """Give inputs and outputs the spec's names, order and shapes.

    Parameters
    ----------
    converted : onnx.GraphProto
        Changed in place.
    heads : mapping of str to str
        The spec's name of each output by the name that it bore while it was converted.
    graph : Graph
        What inputs and outputs are.
    """
    final = {name: f"{name}_output" if name in graph.inputs else name for name in graph.outputs}
    called = {mangled: final[name] for mangled, name in heads.items()}
    # what lies within must not bear an output's name
    called.update({name: f"multifit_inner_{i}_" for i, name in enumerate(final.values())})
    for node in converted.node:
        node.input[:] = [called.get(name, name) for name in node.input]
        node.output[:] = [called.get(name, name) for name in node.output]
    needed = {name for node in converted.node for name in node.input} | set(final.values())
    for tensor in list(converted.initializer):
        tensor.name = called.get(tensor.name, tensor.name)
        if tensor.name not in needed:
            converted.initializer.remove(tensor)  # the converter leaves some behind, and onnxruntime warns
    del converted.input[:], converted.output[:]
    converted.input.extend(_value(name, array) for name, array in graph.inputs.items())
    converted.output.extend(_value(final[name], array) for name, array in graph.outputs.items())


def _value(name: str, array: Array) -> Any:
    helper = importlib.import_module("onnx.helper")
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(array.dtype))
    return helper.make_tensor_value_info(name, kind, array.shape)
