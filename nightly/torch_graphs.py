"""Whole graphs of net, losses and metrics, in MXNet and translated, in float64."""

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit.cli import build_parser
from multifit.cli.task import Choices, Task
from multifit.gluon.compat import mx
from multifit.gluon.step.cached_graph import CachedGraph
from tests.torch.from_gluon.agreement import in_mxnet, in_torch

TASKS = Path(__file__).parents[1] / "tasks"
DTYPES = {"float32": "float64", "0": "1"}  # as MXNet writes them, by name and by number


@dataclass
class Traced:
    """A graph that a run traced, its inputs in one batch, and whether it trains."""

    symbol: Any
    inputs: dict[str, np.ndarray]
    parameters: dict[str, Any]
    training: bool


def traced_graphs(task: str, *settings: str, batches: int = 2) -> list[Traced]:
    """Train and evaluate a task file on a few batches; return the graphs that were traced."""
    graphs = []
    trace = CachedGraph.trace

    def recorded(self: CachedGraph, arrays: Any) -> Any:
        arguments = trace(self, arrays)
        names, symbol = self._cached_graph
        values = [array.asnumpy() for array in arrays if array is not None]
        inputs = dict(zip([each.name for each in names], values))
        graphs.append(Traced(symbol, inputs, self.collect_params(), mx.autograd.is_training()))
        return arguments

    chosen = ["--set", *settings] if settings else []
    options = build_parser().parse_args(["train", str(TASKS / f"{task}.py"), "--quiet", *chosen])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CachedGraph, "trace", recorded)
        run = Task(Choices(options))
        train_data, val_data = (list(itertools.islice(iter(each), batches)) for each in run.data)
        run.estimator.fit(train_data, batches=batches, event_handlers=[])
        run.estimator.evaluate(val_data)
    return graphs


def assert_graph_agrees(graph: Traced, tolerance: float = 1e-9, dtype: str = "float64") -> None:
    """Assert that outputs, gradients and running statistics are the same, without dropout."""
    source = json.loads(graph.symbol.tojson())
    for node in source["nodes"]:
        attributes = node.get("attrs", {})
        for key in {"dtype", "__dtype__"} & set(attributes) if dtype == "float64" else ():
            attributes[key] = DTYPES.get(attributes[key], attributes[key])
        if node["op"] in ("Dropout", "RNN"):
            attributes["p"] = "0"
    symbol = mx.sym.load_json(json.dumps(source))
    names = symbol.list_inputs()
    # some of which may be unread
    values = {name: in_dtype(array, dtype) for name, array in graph.inputs.items()}
    held = {name: graph.parameters[name] for name in names if name not in values}
    values.update({name: in_dtype(parameter.data().asnumpy(), dtype) for name, parameter in held.items()})
    trained = [name for name, p in held.items() if p.grad_req != "null"] if graph.training else []
    expected, heads = in_mxnet(symbol, values, trained, graph.training)
    found = in_torch(symbol, values, trained, graph.training, heads)
    for ours, theirs in zip(found, expected):
        assert len(ours) == len(theirs)
        for our, their in zip(ours, theirs):
            assert (our.shape, our.dtype) == (their.shape, their.dtype)
            largest = np.abs(their).max(initial=1)
            np.testing.assert_allclose(our, their, rtol=0, atol=tolerance * largest)


def in_dtype(array: np.ndarray, dtype: str) -> np.ndarray:
    return array.astype(dtype) if array.dtype.kind == "f" else array
