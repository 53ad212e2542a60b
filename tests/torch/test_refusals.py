"""Nets, losses and trainers that cannot be bridged: refused by name, with their way out, by the constructor.

What shapes decide is refused with the first batch, and moves nothing.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MultiEstimator, SpecError, TrainerError, TrainerSpec
from multifit.gluon.compat import mx
from tests.common.nets import sequential, two_heads
from tests.common.specs import CE, L2, one_loss_spec, two_head_spec
from tests.torch.runs import BATCHES, estimator_of

nn = mx.gluon.nn
SGD = TrainerSpec(".*", "sgd")


class OwnGradient(mx.gluon.HybridBlock):
    """A cross entropy of SoftmaxOutput, which ignores the gradient that it receives."""

    def hybrid_forward(self, F: Any, digit: Any, label: Any) -> Any:
        return -F.log(F.pick(F.SoftmaxOutput(digit, label), label))


class HalfScale(mx.gluon.HybridBlock):
    """A layer whose scale is float16."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Dense(3)
        self.scale = self.params.get("scale", shape=(1,), init="ones", dtype="float16")

    def hybrid_forward(self, F: Any, image: Any, scale: Any) -> Any:
        return F.broadcast_mul(self.out(image), F.cast(scale, "float32"))


def with_hook() -> Any:
    net = nn.Dense(3)
    net.register_forward_hook(lambda *call: None)
    return net


def adding() -> Any:
    net = nn.Dense(3)
    net.weight.grad_req = "add"
    return net


NETS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "hook": (with_hook, SpecError, '"the net" has hooks; detach them'),
    "sparse": (
        lambda: sequential(nn.Embedding(9, 4, sparse_grad=True), nn.Dense(3)), TrainerError,
        '"0.weight" have sparse gradients; use dense layers'),
    "float16": (
        HalfScale, TrainerError, '"scale" are neither float32 nor float64; call net.cast("float32")'),
    "adding": (adding, TrainerError, 'have grad_req="add"; give MultiEstimator(accumulate=...)'),
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_nets_that_are_refused(name: str) -> None:
    make, error, message = NETS[name]
    with pytest.raises(error) as caught:
        MultiEstimator(make(), one_loss_spec(CE), SGD, engine="torch")
    assert message in str(caught.value) and 'or use engine="mxnet"' in str(caught.value)


SDML = LossSpec(mx.gluon.loss.SDMLLoss(), ["digit", "digit"])
UNUSED: Any = {"labels": ["d", "s"], "metrics": {}, "unused": ["size", "d", "s"]}
DECLARED: dict[str, tuple[type[Exception], Any]] = {
    'losses["digit"]: the operator SoftmaxOutput (1 node, ': (
        SpecError, {"spec": two_head_spec(losses={"digit": LossSpec(OwnGradient())}, unused=["size"])}),
    'losses["digit"] cannot become a graph': (
        SpecError, {"spec": two_head_spec(losses={"digit": SDML}, **UNUSED)}),
    "LBSGD has no translation": (TrainerError, {"trainers": TrainerSpec(".*", "lbsgd")}),
    "AdamW has no translation": (  # a user's own
        TrainerError, {"trainers": TrainerSpec(".*", type("AdamW", (mx.optimizer.SGD,), {})())}),
}  # fmt: skip


@pytest.mark.parametrize("message", DECLARED)
def test_what_is_declared_and_refused(message: str) -> None:
    error, options = DECLARED[message]
    with pytest.raises(error) as caught:
        estimator_of(**options)
    assert message in str(caught.value) and 'use engine="mxnet"' in str(caught.value)


class ReadsShape(mx.gluon.HybridBlock):
    """A net that no symbol runs through."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Dense(3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.out(x) * x.shape[0]


class Untranslated(mx.gluon.HybridBlock):
    """Sorts by an operator that has no translation."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.Correlation(x, x, kernel_size=1, max_displacement=1, pad_size=1)


FIRST_BATCH: dict[str, tuple[Callable[[], Any], str]] = {
    "shapes": (ReadsShape, "the net cannot become a graph: .*shape.*write it as a HybridBlock"),
    "operator": (
        lambda: sequential(nn.Conv2D(1, 1), Untranslated(), nn.Dense(1)),
        "the net: the operator Correlation .1 node.*no translation.*; use other operators"),
}  # fmt: skip


@pytest.mark.parametrize("name", FIRST_BATCH)
def test_what_the_first_batch_shows_moves_nothing(name: str) -> None:
    make, message = FIRST_BATCH[name]
    shape = (2, 3, 4, 4) if name == "operator" else (2, 6)
    data = [(np.ones(shape, "float32"), np.ones((2, 1), "float32"))]
    estimator = MultiEstimator(make(), one_loss_spec(L2 if name == "operator" else CE), SGD, engine="torch")
    for call in (estimator.check, lambda data: estimator.fit(data, epochs=1), estimator.predict):
        with pytest.raises(SpecError, match=f'engine="torch": {message}.*, or use engine="mxnet"'):
            call(data)


def test_forward_that_is_no_graph_is_refused_in_training() -> None:
    spec = two_head_spec(forward=lambda net, slots: net(slots["image"] * float(slots["image"].sum() > 0)))
    estimator = MultiEstimator(two_heads("hybridized"), spec, SGD, engine="torch")
    before = estimator.values()
    with pytest.raises(SpecError, match="forward=, with the net, cannot become a graph"):
        estimator.fit(BATCHES, epochs=1, event_handlers=[])
    np.testing.assert_equal({n: estimator.values()[n] for n in before}, before)
