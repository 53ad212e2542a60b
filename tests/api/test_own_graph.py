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
    """Returns two outputs while training and another when evaluating, which may look at the array."""

    def __init__(self, on_arrays: bool = False) -> None:
        super().__init__()
        self.body, self.on_arrays = nn.Dense(1, in_units=3), on_arrays

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        features = self.body(x)
        if autograd.is_training():
            return features, features * 2
        return features * (x.shape[1] if self.on_arrays else 3)


def fit_modes(on_arrays: bool) -> tuple[Any, np.ndarray]:
    """Fit it; return the net and its input."""
    evaluate = TaskSpec(outputs="out", labels=["y"], unused=["out", "y"])
    losses = {"l": LossSpec(L2, "a", "y")}
    spec = TaskSpec(outputs=["a", "b"], labels=["y"], losses=losses, unused=["b"], evaluate=evaluate)
    net, x = hybridized(Modes(on_arrays)), np.ones((4, 3), "float32")
    data = [(x, np.ones((4, 1), "float32"))] * 2
    MultiEstimator(net, spec).fit(data, epochs=1, event_handlers=SILENT)
    return net, x


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
    net, x = fit_modes(False)
    net.export(str(tmp_path / "net"))
    expected = 3 * net.body(mx.nd.array(x)).asnumpy()
    np.testing.assert_array_equal(imported(tmp_path / "net", x).asnumpy(), expected)
    net, _ = fit_modes(True)
    with pytest.raises(RuntimeError, match="hybridize"):
        net.export("nowhere")


def test_a_graph_of_the_net_is_kept_and_a_net_that_is_not_hybridized_gets_none(batches: Any) -> None:
    plain, net = two_heads("hybrid"), two_heads("hybridized")
    net.initialize()
    net(mx.nd.array(batches[0][0]))
    graph = net._cached_graph
    for each in (plain, net):
        MultiEstimator(each, two_head_spec()).fit(batches, epochs=1, event_handlers=SILENT)
    assert net._cached_graph is graph and not plain._cached_graph
