"""What torch does not train, by name and with its way out: processes, losses, nets, parameters."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MultiEstimator, SpecError, TrainerError, TrainerSpec
from multifit.gluon.compat import mx
from tests.common.compare import snapshot
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import hybridized, sequential, two_heads
from tests.common.specs import CE, L2, one_loss_spec, two_head_spec
from tests.torch.runs import ADAM, BATCHES, estimator_of

SGD = TrainerSpec(".*", "sgd")
ARRAYS = two_head_arrays(16)
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
        '"0.weight" have sparse gradients; use dense layers'),
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
        r'losses\["digit"\]: the operator SoftmaxOutput .*no translation; use other operators, or use engine="mxnet"'
    )
    with pytest.raises(SpecError, match=message):
        estimator.fit(BATCHES, epochs=1, event_handlers=[])


class Mean(mx.gluon.HybridBlock):
    """A loss that is not hybridized."""

    def hybrid_forward(self, F: Any, digit: Any, label: Any) -> Any:
        return F.mean(digit) + 0 * F.mean(label)


SDML = LossSpec(mx.gluon.loss.SDMLLoss(), ["digit", "digit"])
UNHYBRIDIZED = LossSpec(Mean(), "digit", "digit")
FITS: dict[str, tuple[type[Exception], Any]] = {
    "the net is not hybridized; call net.hybridize()": (SpecError, {"kind": "plain"}),
    'losses["digit"] cannot be part of the graph': (
        SpecError, {"spec": two_head_spec(losses={"digit": UNHYBRIDIZED}, unused=["size"])}),
    'losses["digit"] cannot be part of the graph; make': (
        SpecError, {"spec": two_head_spec(
            labels=["d", "s"], losses={"digit": SDML}, metrics={}, unused=["size", "d", "s"])}),
    "forward= is not a graph": (
        SpecError, {"spec": two_head_spec(forward=lambda net, slots: net(slots["image"]))}),
    "LBSGD has no translation": (TrainerError, {"trainers": TrainerSpec(".*", "lbsgd")}),
    "AdamW has no translation": (  # a user's own
        TrainerError, {"trainers": TrainerSpec(".*", type("AdamW", (mx.optimizer.SGD,), {})())}),
}  # fmt: skip


@pytest.mark.parametrize("message", FITS)
def test_fits_that_are_refused_move_nothing(message: str) -> None:
    error, options = FITS[message]
    estimator = estimator_of(**options)
    with pytest.raises(error) as caught:
        estimator.fit(BATCHES, epochs=1, event_handlers=[])
    assert message in str(caught.value) and 'use engine="mxnet"' in str(caught.value)
    before = snapshot(estimator.net)
    with pytest.raises(error) as again:
        estimator.check(BATCHES)
    assert message in str(again.value)
    with pytest.raises(error):
        estimator.fit(BATCHES, epochs=1, event_handlers=[])
    for name, value in snapshot(estimator.net).items():
        np.testing.assert_array_equal(value, before[name])


class Untranslated(mx.gluon.HybridBlock):
    """Sorts by an operator that has no translation."""

    def hybrid_forward(self, F: Any, image: Any) -> Any:
        return F.Correlation(image, image, kernel_size=1, max_displacement=1, pad_size=1)


def test_operators_that_have_no_translation_are_refused_by_name() -> None:
    net = Untranslated()
    net.hybridize()
    layers = sequential(mx.gluon.nn.Conv2D(1, 1), net, mx.gluon.nn.Dense(1))
    layers.hybridize()
    data = [(np.ones((2, 3, 4, 4), "float32"), np.ones((2, 1), "float32"))]
    estimator = MultiEstimator(layers, one_loss_spec(L2), ADAM, engine="torch")
    for call in (lambda: estimator.check(data), lambda: estimator.fit(data, epochs=1, event_handlers=[])):
        with pytest.raises(SpecError, match="Correlation.*no translation") as caught:
            call()
        message = caught.value.problems[0].message
        assert message.startswith('engine="torch": the operator Correlation (1 node, "untranslated')
        assert message.endswith('; use other operators or attributes, or use engine="mxnet"')


class OnArrays(mx.gluon.Block):
    """The same in a net that is recorded; its forward calls itself otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.child, self.out = Untranslated(), mx.gluon.nn.Dense(1)

    def forward(net, image: Any) -> Any:  # noqa: N805
        return net.out(net.child(image)) + mx.nd.random.exponential(1, shape=image.shape[:1]).expand_dims(1)


def test_operators_of_a_recorded_net_are_refused_by_their_lines(caplog: Any) -> None:
    data = [(np.ones((2, 3, 4, 4), "float32"), np.ones((2, 1), "float32"))]
    line = r"\(test_refusals\.py, line \d+\)"
    places = [
        rf'Correlation \(1 node, the first in "child", a Untranslated {line}\)',
        rf"_random_exponential \(1 node, the first in OnArrays {line}\)",
    ]
    net = hybridized(OnArrays())
    estimator = MultiEstimator(net, one_loss_spec(L2), ADAM, engine="torch", precision="bfloat16")
    with pytest.raises(SpecError) as caught:
        estimator.fit(data, epochs=1, event_handlers=[])
    assert len(caught.value.problems) == 2
    for place, problem in zip(places, caught.value.problems):
        message = f'engine="torch": the operator {place}: it has no translation; .*, or use engine="mxnet"'
        assert re.fullmatch(message, problem.message)
    estimator.evaluate(data, event_handlers=[])
    assert re.search(rf'MXNet on the CPU: (.|\n)*engine="torch": the operator {places[0]}', caplog.text)


def test_tools_are_refused() -> None:
    with pytest.raises(ValueError, match='find_learning_rate does not work with engine="torch"'):
        estimator_of().find_learning_rate(BATCHES)
    with pytest.raises(ValueError, match='profile does not work with engine="torch"'):
        estimator_of().profile(BATCHES)
