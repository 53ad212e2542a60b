"""A traced net as an ONNX model, by mxnet's own converter."""

from __future__ import annotations

import importlib
import json
import logging
import warnings
from contextlib import contextmanager
from typing import Any, Iterator

import numpy as np

from ...errors import last_line, names
from ..compat import mx
from .graph import Graph
from .onnx_names import rename

__all__ = ["onnx_model", "require_onnx"]

# The newest set of ONNX operators that mxnet 1.9.1 knows, and the form of file that came with it. Left alone,
# its converter labels the model with the newest set that the installed onnx knows, in which some operators
# take other arguments (ReduceMean's axes, from 18 on).
OPSET, IR_VERSION = 13, 7

# Converted to what suppresses boxes of other classes too, and fills up with other values in another order.
OTHERWISE = {"_contrib_box_nms"}

INSTALL = 'pip install "multifit[onnx]"'


def require_onnx() -> Any:
    """Return onnx.

    Raises
    ------
    ImportError
        It is not installed, or is newer than mxnet's converter can use.
    """
    try:
        onnx = importlib.import_module("onnx")
    except ImportError as error:
        raise ImportError(f"exporting to ONNX needs onnx, which is not there ({error}): {INSTALL}") from error
    try:
        importlib.import_module("onnx.mapping")
    except ImportError:
        raise ImportError(
            f"mxnet {mx.__version__} cannot use onnx {onnx.__version__}: its converter needs onnx.mapping, "
            f"which 1.18 is the last to have: {INSTALL}"
        ) from None
    return onnx


def onnx_model(graph: Graph) -> Any:
    """Convert a traced net.

    Parameters
    ----------
    graph : Graph
        The net, with named inputs and outputs.

    Returns
    -------
    onnx.ModelProto
        Its inputs and outputs bear the spec's names and stand in the spec's order; an output that bears an
        input's name is called ``<name>_output``, as ONNX has one name space for both. The first axis is ``N``
        where the net takes batches of any size.

    Raises
    ------
    ValueError
        mxnet's converter lacks an operator, or fails.
    ImportError
        See :func:`require_onnx`.
    """
    onnx = require_onnx()
    called = {name: f"multifit_output_{i}_" for i, name in enumerate(graph.heads)}
    symbol = graph.symbol(called)
    _check_operators(graph, symbol)
    try:
        with _opset(onnx):
            converted = _converted(onnx, graph, symbol)
            rename(converted, {mangled: name for name, mangled in called.items()}, graph)
            model = onnx.helper.make_model(
                converted,
                producer_name="multifit",
                ir_version=IR_VERSION,
                opset_imports=[onnx.helper.make_opsetid("", OPSET)],
            )
            onnx.checker.check_model(model)
    except Exception as error:
        raise ValueError(
            f"ONNX: mxnet's converter failed ({type(error).__name__}: {last_line(error)}); {_instead()}"
        ) from error
    return model


def _converted(onnx: Any, graph: Graph, symbol: Any) -> Any:
    read = [name for name in symbol.list_inputs() if name not in graph.parameters]
    kind = onnx.helper.np_dtype_to_tensor_dtype
    with _silent():
        converter = mx.onnx.mx2onnx._export_onnx.MXNetGraph()
        found = converter.create_onnx_graph_proto(
            symbol,
            dict(graph.parameters),
            [graph.example[name] for name in read],
            [kind(np.dtype(graph.inputs[name].dtype)) for name in read],
            opset_version=OPSET,
            dynamic=True,
        )
    found.name = "multifit"
    return found


@contextmanager
def _silent() -> Iterator[None]:
    """Keep to itself what onnx says of mxnet's use of it, and what the converter tells the root logger.

    What matters of that was refused before. `logging.warning` would also set up the process's logging.
    """
    root, quiet = logging.getLogger(), logging.NullHandler()
    level = root.level
    root.addHandler(quiet)
    root.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.setLevel(level)
        root.removeHandler(quiet)


@contextmanager
def _opset(onnx: Any) -> Iterator[None]:
    """Let what the converter checks be checked as what it is; it asks for no version itself."""
    context = onnx.checker.DEFAULT_CONTEXT
    newest = context.opset_imports
    context.opset_imports = {"": OPSET}
    try:
        yield
    finally:
        context.opset_imports = newest


def _check_operators(graph: Graph, symbol: Any) -> None:
    """Refuse what the converter lacks, and what it converts to something that gives other values."""
    registry = mx.onnx.mx2onnx._export_onnx.MXNetGraph.registry_
    known = {op for version, ops in registry.items() if version <= OPSET for op in ops} - OTHERWISE
    deep = _deep_dots(graph, symbol)
    lacking: dict[str, list[str]] = {}
    for node in json.loads(symbol.tojson())["nodes"]:
        if node["op"] not in known or (node["op"] == "dot" and node["name"] in deep):
            lacking.setdefault(node["op"], []).append(node["name"])
    if lacking:
        found = ", ".join(f'"{op}" (at {names(where[:3])})' for op, where in lacking.items())
        raise ValueError(f"ONNX: mxnet {mx.__version__} has no true converter for {found}; {_instead()}")


def _deep_dots(graph: Graph, symbol: Any) -> set[str]:
    """Return where `dot` takes more than matrices: it becomes ONNX's MatMul, which is another product."""
    inner = symbol.get_internals()
    known = {**graph.example, **{name: value.shape for name, value in graph.parameters.items()}}
    shapes = inner.infer_shape_partial(**{name: known[name] for name in symbol.list_inputs()})[1]
    return {one.name for one, shape in zip(inner, shapes) if len(shape) > 2}


def _instead() -> str:
    return (
        'export with format="gluon", or name outputs before it and leave the rest out with '
        "TaskSpec(evaluate=TaskSpec(..., forward=...))"
    )
