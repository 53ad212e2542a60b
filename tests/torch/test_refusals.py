"""What torch does not train, by name and with its way out: processes, losses, nets, parameters."""

from __future__ import annotations

from typing import Any, Callable

import pytest

from multifit import LossSpec, MultiEstimator, SpecError, TrainerError, TrainerSpec
from multifit.gluon.compat import mx
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import hybridized, sequential, two_heads
from tests.common.specs import CE, one_loss_spec, two_head_spec

SGD = TrainerSpec(".*", "sgd")
ARRAYS = two_head_arrays(16)
BATCHES = in_batches(ARRAYS.values())
DIGITS = in_batches([ARRAYS["image"], ARRAYS["digit"]])


class OwnGradient(mx.gluon.HybridBlock):
    """A cross entropy of SoftmaxOutput, which ignores the gradient that it receives."""

    def hybrid_forward(self, F: Any, digit: Any, label: Any) -> Any:
        return -F.log(F.pick(F.SoftmaxOutput(digit, label), label))


class HalfScale(mx.gluon.HybridBlock):
    """A layer whose scale is float16."""

    def __init__(self) -> None:
        super().__init__()
        self.out = mx.gluon.nn.Dense(3)
        self.scale = self.params.get("scale", shape=(1,), init="ones", dtype="float16")

    def hybrid_forward(self, F: Any, image: Any, scale: Any) -> Any:
        return F.broadcast_mul(self.out(image), F.cast(scale, "float32"))


def with_hook() -> Any:
    net = mx.gluon.nn.Dense(3)
    net.register_forward_hook(lambda *call: None)
    return net


def sparse_gradients() -> Any:
    return sequential(mx.gluon.nn.Embedding(9, 4, sparse_grad=True), mx.gluon.nn.Dense(3))


NETS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "hook": (with_hook, SpecError, "the net, or a block in it, has hooks; detach them"),
    "sparse": (
        sparse_gradients, TrainerError,
        '"0.weight" are sparse, or have sparse gradients; use dense layers'),
    "float16": (
        HalfScale, TrainerError, '"scale" are neither float32 nor float64; call net.cast("float32")'),
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_nets_that_are_refused(name: str) -> None:
    make, error, message = NETS[name]
    data = [(abs(image).round(), digit) for image, digit in DIGITS]  # words, for an embedding
    for call in (lambda e: e.check(data), lambda e: e.fit(data, epochs=1, event_handlers=[])):
        with pytest.raises(error) as caught:
            call(MultiEstimator(hybridized(make()), one_loss_spec(CE), SGD, engine="torch"))
        assert message in str(caught.value) and 'or use engine="mxnet"' in str(caught.value)


def test_a_loss_that_makes_its_own_gradient_is_refused() -> None:
    spec = two_head_spec(losses={"digit": LossSpec(hybridized(OwnGradient()))}, unused=["size"])
    estimator = MultiEstimator(two_heads("hybridized"), spec, SGD, engine="torch")
    message = (
        r'losses\["digit"\] ignores the gradient that it receives; use another loss, or use engine="mxnet"'
    )
    with pytest.raises(SpecError, match=message):
        estimator.fit(BATCHES, epochs=1, event_handlers=[])
