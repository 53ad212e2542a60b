"""Nets that return None where they have nothing to say."""

from __future__ import annotations

from multifit import MultiEstimator, TaskSpec

# isort: split
import mxnet as mx
import pytest
from mxnet import gluon


class Shy(gluon.HybridBlock):
    """Returns (out, None)."""

    def __init__(self):
        super().__init__()
        self.out = gluon.nn.Dense(3)

    def hybrid_forward(self, F, x):
        return self.out(x), None


@pytest.mark.parametrize("hybridized", [False, True])
def test_a_none_at_the_end_is_ignored_with_the_rest(hybridized):
    net = Shy()
    if hybridized:
        net.hybridize()
    spec = TaskSpec(["out", ...], ["out"], {"out": gluon.loss.SoftmaxCrossEntropyLoss()})
    batches = [(mx.nd.ones((4, 2)), mx.nd.array([0, 1, 2, 0]))] * 3
    history = MultiEstimator(net, spec).fit(batches, epochs=2)
    assert history["train_loss"][1] < history["train_loss"][0]
