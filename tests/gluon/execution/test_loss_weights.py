"""Weights over normalizers are computed once for all batches that share them."""

from multifit import TaskSpec
from multifit.distributed import ALONE
from multifit.gluon.compat import mx
from multifit.gluon.distributed.collectives import Normalizers
from multifit.gluon.execution.loss_graph import LossGraph
from multifit.gluon.execution.loss_weights import BatchLossScale, LossScaler


def test_graphs_of_the_same_losses_share_their_weights() -> None:
    """Samples of ever new sizes have ever new graphs, which would be kept."""
    terms = TaskSpec(outputs=["y"], labels=["y"], losses={"y": mx.gluon.loss.L2Loss()}).terms
    scaler = LossScaler(terms, "float32", Normalizers(ALONE))
    scale = BatchLossScale({"y": 2.0}, {"y": 4.0}, {"y": 4.0})
    vectors = [scaler.vector(LossGraph(terms, []), scale, mx.cpu()) for _ in range(3)]
    assert vectors[0].asnumpy() == [0.5] and vectors[1] is vectors[2] is vectors[0]
    assert len(scale.vectors) == 1
