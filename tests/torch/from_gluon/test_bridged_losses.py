"""Losses of Gluon on tensors: values, gradients, and missing or weighted values, as with MXNet."""

from typing import Any

import numpy as np
import pytest
import torch

from multifit import LabelSpec, LossSpec, TaskSpec
from multifit.gluon.compat import mx
from multifit.gluon.step import loss_calls as gluon
from multifit.losses import SegmentationCELoss, SequenceCELoss
from multifit.spec.terms import LABELS, OUTPUTS, Ref
from multifit.torch import loss_calls as native
from tests.torch.from_gluon.bridges import assert_same, bridged, by_sample

loss = mx.gluon.loss
R = np.random.RandomState(0)
Arrays = dict[str, np.ndarray]


def classes(*shape: int, count: int = 3) -> np.ndarray:
    return R.randint(0, count, shape)


def shares(*shape: int) -> np.ndarray:
    values = np.exp(R.randn(*shape))
    return values / values.sum(axis=-1, keepdims=True)


def distance(output: Any, label: Any) -> Any:
    return (output - label).abs()


class Scaled(loss.Loss):
    """A loss with a parameter."""

    def __init__(self) -> None:
        super().__init__(weight=None, batch_axis=0)
        self.scale = self.params.get("scale", shape=(1,), init=mx.init.Constant(2), dtype="float64")

    def hybrid_forward(self, F: Any, output: Any, label: Any, scale: Any) -> Any:
        return F.mean(F.broadcast_mul(F.abs(output - label), scale), axis=1)


LENGTHS = {"n": np.array([1, 3, 5, 2, 4, 1], "float32")}
# the loss, outputs, labels, and other slots; of all, each value of a label may be missing, or have a weight
OF_VALUES: dict[str, Any] = {
    "softmax": (loss.SoftmaxCELoss(), R.randn(6, 3), classes(6)),
    "softmax, sequences": (loss.SoftmaxCELoss(axis=1), R.randn(6, 3, 4), classes(6, 4)),
    "sigmoid": (loss.SigmoidBCELoss(), R.randn(6, 2), classes(6, 2, count=2).astype("float64")),
    "l2": (loss.L2Loss(), R.randn(6, 2), R.randn(6, 2)),
    "l2 of numbers": (loss.L2Loss(), R.randn(6, 1), R.randn(6)),
    "l1": (loss.L1Loss(), R.randn(6, 2, 3), R.randn(6, 2, 3)),
    "huber": (loss.HuberLoss(rho=0.3), R.randn(6, 2), R.randn(6, 2)),
    "hinge": (loss.HingeLoss(), R.randn(6, 2), R.randn(6, 2)),
    "squared hinge": (loss.SquaredHingeLoss(), R.randn(6, 2), R.randn(6, 2)),
    "logistic": (loss.LogisticLoss(), R.randn(6, 2), np.sign(R.randn(6, 2))),
    "segmentation": (SegmentationCELoss(ignore_label=2), R.randn(6, 3, 4, 4), classes(6, 4, 4)),
    "distance": (distance, R.randn(6, 2), R.randn(6, 2)),
}
OF_SAMPLES: dict[str, Any] = {
    "softmax, shares": (loss.SoftmaxCELoss(sparse_label=False), R.randn(6, 3), shares(6, 3)),
    "kl": (loss.KLDivLoss(), R.randn(6, 3), shares(6, 3)),
    "segmentation of all": (SegmentationCELoss(None, weight=0.5), R.randn(6, 3, 4), classes(6, 4)),
    "a parameter": (Scaled(), R.randn(6, 2), R.randn(6, 2)),
}
WHOLE: dict[str, Any] = {  # MXNet returns a number of the latter, and takes no column of classes elsewhere
    "softmax, real classes": (loss.SoftmaxCELoss(weight=2.0), R.randn(6, 3), classes(6, 1).astype("float64")),
    "poisson": (loss.PoissonNLLLoss(), R.randn(6, 3), np.abs(R.randn(6, 3))),
    "sequences": (SequenceCELoss(), R.randn(6, 5, 3), classes(6, 5), LENGTHS),
}
WEIGHTED: dict[str, Any] = {
    "sequences": WHOLE["sequences"],
    "weighted sequences": (SequenceCELoss(1, weight=0.5), R.randn(6, 3, 5), classes(6, 5), LENGTHS),
    "segmentation of all": OF_SAMPLES["segmentation of all"],
}


def assert_agree(case: Any, added: Arrays, tolerance: float, label: Any = "y", **fields: Any) -> None:
    """Check values, gradients and shares of present values; `added` are presences or weights."""
    fn, output, values, *others = case
    slots: Arrays = {**added, **(others[0] if others else {})}
    labels = [label, *(["n"] if others else []), *fields.values()]
    takes = ["y", "n"] if others else "y"
    spec = TaskSpec(outputs=["y"], labels=labels, losses={"y": LossSpec(fn, "y", takes, **fields)})
    setup, _ = bridged(mx.gluon.nn.Dense(2), spec)
    if isinstance(fn, Scaled):
        fn.initialize()
        setup.spec.terms[0].spec.fn.held.read()
    theirs = of_gluon(spec.terms[0], output, values, slots)
    ours = of_torch(setup.spec.terms[0], output, values, slots)
    assert_same(ours[:2], theirs[:2], tolerance)
    assert_same(ours[2:], theirs[2:], 1e-6)  # in float32


def references(output: Any, slots: Any) -> dict[Ref, Any]:
    return {Ref(OUTPUTS, "y"): output, **{Ref(LABELS, name): each for name, each in slots.items()}}


def of_gluon(term: Any, output: Any, label: Any, slots: Arrays) -> list[np.ndarray]:
    output = mx.nd.array(output, dtype="float64")
    added = {name: mx.nd.array(each, dtype=each.dtype) for name, each in {"y": label, **slots}.items()}
    output.attach_grad()
    by_value = gluon.counts_values(term, references(output, added)) if term.present else False
    with mx.autograd.record():
        (values,) = gluon.call_loss(term, references(output, added), None, by_value)
    values.backward()
    share = [gluon.present_share(term, added).asnumpy()] if term.present else []
    return [by_sample(values.asnumpy()), output.grad.asnumpy(), *share]


def of_torch(term: Any, output: Any, label: Any, slots: Arrays) -> list[np.ndarray]:
    output = torch.tensor(output, requires_grad=True)
    added = {name: torch.from_numpy(each) for name, each in {"y": label, **slots}.items()}
    (values,) = native.call_loss(term, references(output, added))
    values.sum().backward()
    share = [native.present_share(term, added).numpy()] if term.present else []
    return [by_sample(values.detach().numpy()), output.grad.numpy(), *share]


@pytest.mark.parametrize("name", [*OF_VALUES, *OF_SAMPLES, *WHOLE])
def test_values_and_gradients(name: str) -> None:
    assert_agree({**OF_VALUES, **OF_SAMPLES, **WHOLE}[name], {}, 1e-8)


@pytest.mark.parametrize("name", [*OF_VALUES, *OF_SAMPLES])
def test_missing_values(name: str) -> None:
    case = {**OF_VALUES, **OF_SAMPLES}[name]
    shape = case[2].shape
    present = R.rand(*shape) < 0.6
    if name in OF_SAMPLES or len(shape) == 1:  # whole samples
        present = np.broadcast_to(present.reshape(6, -1)[:, :1], (6, present.size // 6)).reshape(shape)
    assert_agree(case, {"present.y": present.astype("float32")}, 1e-8, LabelSpec("y", missing="nan"))


@pytest.mark.parametrize("name", [*OF_VALUES, *WEIGHTED])
def test_weights(name: str) -> None:
    case = {**OF_VALUES, **WEIGHTED}[name]
    assert_agree(case, {"weight.y": np.abs(R.randn(*case[2].shape))}, 1e-6, sample_weight="w")


def test_a_loss_that_the_net_returns_and_one_of_torch() -> None:
    module = torch.nn.MSELoss()
    losses = {"own": LossSpec(outputs="y"), "torch": LossSpec(module, "y", "y")}
    setup, _ = bridged(mx.gluon.nn.Dense(2), TaskSpec(outputs=["y"], labels=["y"], losses=losses))
    own, other = (term.spec.fn for term in setup.spec.terms)
    assert [tuple(own(torch.ones(shape)).shape) for shape in ((1,), (3,), ())] == [(), (3,), ()]
    assert other is module
