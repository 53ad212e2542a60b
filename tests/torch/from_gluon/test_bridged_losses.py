"""Losses of Gluon on tensors: values, gradients, and missing or weighted values, as with MXNet."""

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from multifit import LabelSpec, LossSpec, SpecError, TaskSpec
from multifit.gluon.compat import mx
from multifit.gluon.step import loss_calls as gluon
from multifit.losses import SegmentationCELoss, SequenceCELoss
from multifit.spec.terms import LABELS, OUTPUTS, Ref
from multifit.torch import loss_calls as native
from tests.torch.from_gluon.bridges import assert_same, bridged, by_sample

loss = mx.gluon.loss
R = np.random.RandomState(0)


def numbers(*shape: int) -> np.ndarray:
    return R.randn(*shape)


def classes(*shape: int, count: int = 3) -> np.ndarray:
    return R.randint(0, count, shape)


def probabilities(*shape: int) -> np.ndarray:
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


CASES: dict[str, tuple[Any, list[np.ndarray]]] = {
    "softmax": (loss.SoftmaxCELoss(), [numbers(6, 3), classes(6)]),
    "softmax, real classes": (
        loss.SoftmaxCELoss(weight=2.0),
        [numbers(6, 3), classes(6, 1).astype("float64")],
    ),
    "softmax, sequences": (loss.SoftmaxCELoss(axis=1), [numbers(6, 3, 4), classes(6, 4)]),
    "softmax, probabilities": (loss.SoftmaxCELoss(sparse_label=False), [numbers(6, 3), probabilities(6, 3)]),
    "sigmoid": (loss.SigmoidBCELoss(), [numbers(6, 2), classes(6, 2, count=2).astype("float64")]),
    "l2": (loss.L2Loss(), [numbers(6, 2), numbers(6, 2)]),
    "l2 of numbers": (loss.L2Loss(), [numbers(6, 1), numbers(6)]),
    "l1": (loss.L1Loss(), [numbers(6, 2, 3), numbers(6, 2, 3)]),
    "huber": (loss.HuberLoss(rho=0.3), [numbers(6, 2), numbers(6, 2)]),
    "hinge": (loss.HingeLoss(), [numbers(6, 2), numbers(6, 2)]),
    "squared hinge": (loss.SquaredHingeLoss(), [numbers(6, 2), numbers(6, 2)]),
    "logistic": (loss.LogisticLoss(), [numbers(6, 2), np.sign(numbers(6, 2))]),
    "kl": (loss.KLDivLoss(), [numbers(6, 3), probabilities(6, 3)]),
    "poisson": (loss.PoissonNLLLoss(), [numbers(6, 3), np.abs(numbers(6, 3))]),
    "segmentation": (SegmentationCELoss(ignore_label=2), [numbers(6, 3, 4, 4), classes(6, 4, 4)]),
    "segmentation of all": (SegmentationCELoss(None, weight=0.5), [numbers(6, 3, 4), classes(6, 4)]),
    "distance": (distance, [numbers(6, 2), numbers(6, 2)]),
    "a parameter": (Scaled(), [numbers(6, 2), numbers(6, 2)]),
}
PER_SAMPLE = {"softmax, probabilities", "kl", "poisson", "segmentation of all", "a parameter"}


# MXNet takes no column of classes there, or returns a number
ALONE = {"softmax, real classes", "poisson"}


def both(fn: Any, arrays: list[np.ndarray], label: Any = "y", **fields: Any) -> Any:
    """Return the loss with MXNet and on tensors, each a function of present values or weights."""
    spec = TaskSpec(outputs=["y"], labels=[label], losses={"y": LossSpec(fn, "y", "y", **fields)})
    setup, _ = bridged(mx.gluon.nn.Dense(2), spec)
    (term,), (bridge_term,) = spec.terms, setup.spec.terms
    if isinstance(fn, Scaled):
        fn.initialize()
        bridge_term.spec.fn.held.read()
    return partial(of_gluon, term, arrays), partial(of_torch, bridge_term, arrays)


def references(output: Any, label: Any, others: Any) -> dict[Ref, Any]:
    arrays = {Ref(OUTPUTS, "y"): output, Ref(LABELS, "y"): label}
    return {**arrays, **{Ref(LABELS, name): each for name, each in others.items()}}


def of_gluon(term: Any, arrays: list[np.ndarray], **others: np.ndarray) -> Any:
    output, label = (mx.nd.array(each, dtype=each.dtype) for each in arrays)
    added = {name.replace("_", "."): mx.nd.array(each, dtype="float32") for name, each in others.items()}
    if "weight.y" in added:
        added["weight.y"] = added["weight.y"].astype("float64")
    output.attach_grad()
    by_value = gluon.counts_values(term, references(output, label, added)) if term.present else False
    with mx.autograd.record():
        (values,) = gluon.call_loss(term, references(output, label, added), None, by_value)
    values.backward()
    share = gluon.present_share(term, added).asnumpy() if term.present else None
    return by_sample(values.asnumpy()), output.grad.asnumpy(), share


def of_torch(term: Any, arrays: list[np.ndarray], **others: np.ndarray) -> Any:
    output, label = map(torch.from_numpy, arrays)
    added = {
        name.replace("_", "."): torch.from_numpy(each.astype("float32")) for name, each in others.items()
    }
    output.requires_grad_()
    output.grad = None
    (values,) = native.call_loss(term, references(output, label, added))
    values.sum().backward()
    share = native.present_share(term, added).numpy() if term.present else None
    return by_sample(values.detach().numpy()), output.grad.numpy(), share


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str):
    theirs, ours = both(*CASES[name])
    assert_same(ours()[:2], theirs()[:2], 1e-8)


@pytest.mark.parametrize("name", [name for name in CASES if name not in ALONE])
def test_missing_values(name: str):
    fn, arrays = CASES[name]
    theirs, ours = both(fn, arrays, LabelSpec("y", missing="nan"))
    present = R.rand(*arrays[1].shape) < 0.6
    if name in PER_SAMPLE or arrays[1].ndim == 1:
        present = np.broadcast_to(present.reshape(6, -1)[:, :1], (6, arrays[1].size // 6)).reshape(
            arrays[1].shape
        )
    (*found, share), (*expected, their_share) = ours(present_y=present), theirs(present_y=present)
    assert_same(found, expected, 1e-8)
    assert_same(share, their_share, 1e-6)  # in float32


@pytest.mark.parametrize("name", [name for name in CASES if name not in PER_SAMPLE - {"segmentation of all"}])
def test_weights(name: str):
    fn, arrays = CASES[name]
    weight = np.abs(numbers(*arrays[1].shape))
    theirs, ours = both_weighted(fn, arrays)
    assert_same(ours(weight_y=weight)[:2], theirs(weight_y=weight)[:2], 1e-6)


def both_weighted(fn: Any, arrays: list[np.ndarray]) -> Any:
    spec = TaskSpec(outputs=["y"], labels=["y", "w"], losses={"y": LossSpec(fn, "y", "y", sample_weight="w")})
    setup, _ = bridged(mx.gluon.nn.Dense(2), spec)
    (term,), (bridge_term,) = spec.terms, setup.spec.terms
    return partial(of_gluon, term, arrays), partial(of_torch, bridge_term, arrays)


def test_sequences():
    spec = TaskSpec(
        outputs=["y"], labels=["y", "length"], losses={"y": LossSpec(SequenceCELoss(), "y", ["y", "length"])}
    )
    setup, _ = bridged(mx.gluon.nn.Dense(2), spec)
    arrays = [numbers(4, 5, 3), classes(4, 5)]
    lengths = {"length": np.array([1, 3, 5, 2], "float32")}
    theirs, ours = (
        of_gluon(spec.terms[0], arrays, **lengths),
        of_torch(setup.spec.terms[0], arrays, **lengths),
    )
    assert_same(ours[:2], theirs[:2], 1e-8)


@pytest.mark.parametrize(("axis", "weight"), [(-1, None), (1, 0.5)])
def test_weighted_sequences(axis: int, weight: float | None):
    fn = SequenceCELoss(axis, weight=weight)
    declared = LossSpec(fn, "y", ["y", "length"], sample_weight="w")
    spec = TaskSpec(outputs=["y"], labels=["y", "length", "w"], losses={"y": declared})
    setup, _ = bridged(mx.gluon.nn.Dense(2), spec)
    arrays = [numbers(4, 5, 3) if axis == -1 else numbers(4, 3, 5), classes(4, 5)]
    others = {"length": np.array([1, 3, 5, 2], "float32"), "weight_y": np.abs(numbers(4, 5))}
    theirs, ours = of_gluon(spec.terms[0], arrays, **others), of_torch(setup.spec.terms[0], arrays, **others)
    assert_same(ours[:2], theirs[:2], 1e-6)


def asks_for_numbers(output: Any, label: Any) -> Any:
    return output * float(label.asnumpy().mean())


REFUSED = {
    "numbers": (
        asks_for_numbers,
        r'losses."y". cannot become a graph: .*asnumpy is not implemented for Symbol',
    ),
    "shapes": (loss.SDMLLoss(), r'losses."y". cannot become a graph: .*use F\'s operators'),
    "own gradients": (
        mx.gluon.nn.HybridLambda(lambda F, x, y: F.SoftmaxOutput(x, y)),
        r'losses."y".: the operator SoftmaxOutput .* has no translation; use other operators',
    ),
    "an operator": (
        mx.gluon.nn.HybridLambda(lambda F, x, y: F.khatri_rao(x, y)),
        r"losses.*y.*: the operator khatri_rao",
    ),
}


def test_losses_that_cannot_become_graphs_are_refused_together():
    names = list(REFUSED)
    with pytest.raises(SpecError) as caught:
        bridged(
            mx.gluon.nn.Dense(2),
            TaskSpec(
                outputs=["y"], labels=["y"],
                losses={str(i): LossSpec(REFUSED[name][0], "y", "y") for i, name in enumerate(names)},
            ),
        )  # fmt: skip
    lines = [each.message for each in caught.value.problems]
    assert len(lines) == len(names)
    for i, (line, name) in enumerate(zip(lines, names)):
        assert re.search(REFUSED[name][1].replace("y", str(i), 1), line) and 'or use engine="mxnet"' in line


def test_a_net_that_returns_its_loss():
    spec = TaskSpec(outputs=["y"], losses={"y": LossSpec(outputs="y")})
    fn = bridged(mx.gluon.nn.Dense(2), spec)[0].spec.terms[0].spec.fn
    assert [tuple(fn(torch.ones(shape)).shape) for shape in ((1,), (3,), ())] == [(), (3,), ()]


def test_a_module_of_torch_stays():
    module = torch.nn.MSELoss()
    setup, _ = bridged(mx.gluon.nn.Dense(2), TaskSpec(outputs=["y"], labels=["y"], losses={"y": module}))
    assert setup.spec.terms[0].spec.fn is module
