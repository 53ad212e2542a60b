"""A hybridized net has a graph of its own after a fit, so that ``net.export`` and Gluon's handlers work."""

import warnings
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from multifit import LossSpec, MultiEstimator, TaskSpec
from tests.common.hand_loop import SILENT
from tests.common.nets import hybridized, normed_heads, two_heads
from tests.common.specs import L2, two_head_spec

USES = {
    "fit": lambda estimator, data: estimator.fit(data, epochs=1, event_handlers=SILENT),
    "check": lambda estimator, data: estimator.check(data),
    "evaluate": lambda estimator, data: estimator.evaluate(data),
    "predict": lambda estimator, data: estimator.predict(data),
}


class Modes(gluon.HybridBlock):
    """Returns two outputs while training, and their sum when evaluating, as detectors do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Dense(1, in_units=3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        features = self.body(x)
        return (features, features * 2) if autograd.is_training() else features * 3


def imported(path: Path, *arrays: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that inputs have no shape
        net = gluon.SymbolBlock.imports(f"{path}-symbol.json", ["data"], f"{path}-0000.params")
    return net(*[mx.nd.array(array) for array in arrays])


@pytest.mark.parametrize("use", USES)
def test_the_net_can_export_itself(use: str, batches: Any, tmp_path: Path) -> None:
    net = hybridized(normed_heads())
    estimator = MultiEstimator(net, two_head_spec())
    USES[use](estimator, batches)
    net.export(str(tmp_path / "net"))
    image = batches[0][0]
    expected = estimator.predict(image)
    for output, name in zip(imported(tmp_path / "net", image), expected):
        np.testing.assert_allclose(output.asnumpy(), expected[name], rtol=1e-5, atol=1e-6)


def test_it_is_the_graph_of_evaluating(tmp_path: Path) -> None:
    evaluate = TaskSpec(outputs="out", labels=["y"], unused=["out", "y"])
    losses = {"l": LossSpec(L2, "a", "y")}
    spec = TaskSpec(outputs=["a", "b"], labels=["y"], losses=losses, unused=["b"], evaluate=evaluate)
    net, x = hybridized(Modes()), np.ones((4, 3), "float32")
    data = [(x, np.ones((4, 1), "float32"))] * 2
    MultiEstimator(net, spec).fit(data, epochs=1, event_handlers=SILENT)
    net.export(str(tmp_path / "net"))
    np.testing.assert_array_equal(
        imported(tmp_path / "net", x).asnumpy(), 3 * net.body(mx.nd.array(x)).asnumpy()
    )


def test_a_graph_of_the_net_is_kept(batches: Any) -> None:
    net = hybridized(two_heads("hybrid"))
    net.initialize()
    net(mx.nd.array(batches[0][0]))
    graph = net._cached_graph
    MultiEstimator(net, two_head_spec()).fit(batches, epochs=1, event_handlers=SILENT)
    assert net._cached_graph is graph


def test_a_net_that_is_not_hybridized_gets_none(batches: Any) -> None:
    net = two_heads("hybrid")
    MultiEstimator(net, two_head_spec()).fit(batches, epochs=1, event_handlers=SILENT)
    assert not net._cached_graph


class ArraysWhenEvaluating(Modes):
    """Looks at the array when evaluating, which a graph cannot."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.body(x) if autograd.is_training() else self.body(x) * x.shape[0]


def test_a_net_that_evaluates_on_arrays_only_gets_none() -> None:
    net, x = hybridized(ArraysWhenEvaluating()), np.ones((4, 3), "float32")
    MultiEstimator(net, L2).fit([(x, np.ones((4, 1), "float32"))], epochs=1, event_handlers=SILENT)
    with pytest.raises(RuntimeError, match="hybridize"):
        net.export("nowhere")
