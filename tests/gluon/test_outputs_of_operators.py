"""A net may return an operator's several results as one element, hybridized or not."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MultiEstimator, TaskSpec

from mxnet import gluon, nd  # isort: skip

IMAGE = np.random.RandomState(0).rand(8, 6).astype("float32")
BATCHES = [(IMAGE, np.zeros((8, 3), "float32"))]
# the outputs, in order, and how they are declared and returned
RETURNED: dict[str, tuple[str, list[Any], Callable[[Any, Any, Any], Any]]] = {
    "split": ("pqb", [["p", "q"], "b"], lambda F, a, b: (F.split(a, num_outputs=2, axis=1), b)),
    "split alone": ("pq", ["p", "q"], lambda F, a, b: F.split(a + F.concat(b, b), num_outputs=2, axis=1)),
    "topk": ("bpq", ["b", ["p", "q"]], lambda F, a, b: (b, F.topk(a, k=3, ret_typ="both"))),
}


class Net(gluon.HybridBlock):
    """Two layers, from which `returned` makes the outputs."""

    def __init__(self, returned: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()
        self.returned = returned
        self.a, self.b = gluon.nn.Dense(6), gluon.nn.Dense(3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.returned(F, self.a(x), self.b(x))


def flat(result: Any) -> list[Any]:
    return [result] if isinstance(result, nd.NDArray) else [leaf for each in result for leaf in flat(each)]


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize(("names", "outputs", "returned"), RETURNED.values(), ids=RETURNED)
def test_results_of_one_operator(names: str, outputs: Any, returned: Any, hybridized: bool) -> None:
    net = Net(returned)
    net.hybridize(hybridized)
    losses, unused = {"l2": LossSpec(gluon.loss.L2Loss(), "p", "y")}, [n for n in names if n != "p"]
    spec = TaskSpec(outputs=outputs, labels=["y"], losses=losses, inputs=["x"], unused=unused)
    estimator = MultiEstimator(net, spec)
    estimator.fit(BATCHES, epochs=2, event_handlers=[])
    predicted = estimator.predict(IMAGE)
    for output, array in zip(names, flat(net(nd.array(IMAGE)))):
        np.testing.assert_allclose(predicted[output], array.asnumpy(), rtol=1e-5, err_msg=output)
