"""``compile=True``: a compiled step computes the same numbers as one that is not compiled; takes a minute."""

from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("needs torch", allow_module_level=True)

import torch

from multifit import SpecError
from multifit.balance import PCGrad, UPGrad
from multifit.torch.from_gluon.translate import tensors_of, translate
from nightly.torch_graphs import traced_graphs
from tests.torch.runs import BATCHES, assert_equal, estimator_of


@pytest.mark.parametrize(
    "balance", [None, PCGrad(on="features"), UPGrad()], ids=["plain", "features", "rows"]
)
def test_a_compiled_step_is_the_step(balance: Any) -> None:
    of_steps, of_values = [], []
    for compiles in (False, True):
        estimator = estimator_of("float64", compile=compiles, balance=balance)
        of_steps.append(dict(estimator.fit(BATCHES, BATCHES, epochs=2, event_handlers=[])))
        of_values.append(estimator.values())
    assert_equal(*of_steps, 1e-10)
    assert_equal(*of_values, 1e-10)


def test_without_a_compiler_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.config as config

    monkeypatch.setattr(config.cpp, "cxx", (None, "no-such-compiler"))
    monkeypatch.setattr(config, "force_disable_caches", True)
    estimator = estimator_of(compile=True)
    with pytest.raises(SpecError, match="torch cannot compile: .*No working C.. compiler.*; leave it out"):
        estimator.fit(BATCHES, epochs=1, event_handlers=[])
    assert_equal(estimator_of().values(), estimator.values())


@pytest.mark.parametrize("task", ["digits", "sentiment", "segmentation"])
def test_a_task_is_one_graph_to_torch(task: str) -> None:
    """Nothing, such as reading a number, breaks the graph that is compiled or captured into several."""
    graphs = traced_graphs(task, batches=1)
    assert graphs
    for graph in graphs:
        held = {n: p for n, p in graph.parameters.items() if n in graph.symbol.list_inputs()}
        trained = [n for n, p in held.items() if p.grad_req != "null"] if graph.training else []
        arrays = {name: parameter.data().asnumpy() for name, parameter in held.items()}
        source = graph.symbol.tojson()
        module = translate(source, list(graph.inputs), tensors_of(arrays, trained), graph.training)
        with torch.set_grad_enabled(graph.training):
            found = torch._dynamo.explain(module)(*map(torch.from_numpy, graph.inputs.values()))
        assert found.graph_break_count == 0, found.break_reasons
