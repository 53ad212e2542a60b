"""LabelSmoothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, SpecError, TaskSpec
from multifit.gluon.handlers import LabelSmoothing, MixUp
from multifit.losses import SegmentationCELoss, SequenceCELoss

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon

from .training import DATA, assert_close, fit, make_net

CE = gluon.loss.SoftmaxCELoss()
DENSE = gluon.loss.SoftmaxCELoss(sparse_label=False)


def by_hand(net: Any, data: Any, loss: Any) -> Any:
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    for x, y in data * 2:
        with autograd.record():
            total = loss(net(x), y).sum()
        total.backward()
        trainer.step(len(x))
    return net


def smoothed(label: Any, epsilon: float = 0.1, classes: int = 3) -> Any:
    return mx.nd.one_hot(label, classes) * (1 - epsilon) + epsilon / classes


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("hybrid", [True, False])
def test_training_equals_a_hand_written_loop(devices: int, hybrid: bool) -> None:
    ours = fit(LabelSmoothing(), devices=devices, hybrid=hybrid)
    assert_close(ours, by_hand(make_net(), DATA, lambda out, y: DENSE(out, smoothed(y))))


def test_an_epsilon_of_0_changes_nothing() -> None:
    assert_close(fit(LabelSmoothing(0)), fit())


def test_one_loss_among_others() -> None:
    losses = {
        "smooth": LossSpec(CE, "y", "label", 0.5),
        "sharp": LossSpec(gluon.loss.SoftmaxCELoss(), "y", "label"),
        "other": LossSpec(lambda out: (out**2).mean(axis=1), "y"),
    }
    ours = fit(LabelSmoothing(0.2, "smooth"), spec=TaskSpec(["y"], ["label"], losses))

    def loss(out: Any, y: Any) -> Any:
        return 0.5 * DENSE(out, smoothed(y, 0.2)) + CE(out, y) + (out**2).mean(axis=1)

    assert_close(ours, by_hand(make_net(), DATA, loss))


def test_labels_of_mixed_samples_are_smoothed() -> None:
    """The mixture of labels is smoothed, in whatever order the handlers are given."""
    ours = fit([LabelSmoothing(0.3), MixUp(random=5)])
    random = np.random.RandomState(5)
    net = make_net()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    for x, y in DATA * 2:
        kept, order = random.beta(0.4, 0.4), mx.nd.array(random.permutation(6))
        with autograd.record():
            out = net(kept * x + (1 - kept) * x[order])
            label = kept * smoothed(y, 0.3) + (1 - kept) * smoothed(y[order], 0.3)
            total = DENSE(out, label).sum()
        total.backward()
        trainer.step(6)
    assert_close(ours, net)


def objective_of(loss: Any, epsilon: float, logits: Any, label: Any, *more: Any) -> float:
    """Return the smoothed objective of a loss of these arguments, alone in its spec."""
    names = ["label", *(f"more{i}" for i in range(len(more)))]
    spec = TaskSpec(["y"], names, {"ce": LossSpec(loss, "y", names)})
    handler = LabelSmoothing(epsilon)

    class Standing:
        batch_axis = 0
        state = None

    Standing.spec = spec  # type: ignore[attr-defined]
    handler.train_begin(Standing)
    handler.batch_begin(Standing)
    slots = dict(zip(names, [label, *more]))
    handler.change_batch(Standing, slots)
    labels = {name: [array] for name, array in slots.items()}
    own = loss(logits, label, *more)
    found = handler.change_objective(
        Standing, [own.sum().reshape((1,)) / len(logits)], {"y": [logits]}, labels, {"ce": [own]}
    )
    return float(mx.nd.add_n(*found).asscalar())


LOG = mx.nd.log_softmax


@pytest.mark.parametrize(
    ("loss", "dense", "shape"),
    [
        (CE, DENSE, (4, 5)),
        (gluon.loss.SoftmaxCELoss(weight=3), gluon.loss.SoftmaxCELoss(weight=3, sparse_label=False), (4, 5)),
        (
            gluon.loss.SoftmaxCELoss(axis=1),
            gluon.loss.SoftmaxCELoss(axis=1, sparse_label=False),
            (4, 5, 2, 3),
        ),
        (
            gluon.loss.SoftmaxCELoss(from_logits=True),
            gluon.loss.SoftmaxCELoss(from_logits=True, sparse_label=False),
            (4, 5),
        ),
        (SegmentationCELoss(None), gluon.loss.SoftmaxCELoss(axis=1, sparse_label=False), (4, 5, 2, 3)),
    ],
)
def test_each_loss_equals_the_dense_loss_of_smoothed_labels(loss: Any, dense: Any, shape: Any) -> None:
    logits = mx.nd.array(np.random.randn(*shape))
    label = mx.nd.array(np.random.randint(0, 5, (shape[0], *shape[2:])).astype("float32"))
    target = mx.nd.one_hot(label, 5) * 0.8 + 0.2 / 5
    target = target if len(shape) == 2 else target.transpose((0, 3, 1, 2))
    assert objective_of(loss, 0.2, logits, label) == pytest.approx(
        float(dense(logits, target).mean().asscalar()), rel=1e-5
    )


def test_sample_weights_are_applied() -> None:
    logits, label = mx.nd.array(np.random.randn(4, 5)), mx.nd.array([0, 1, 2, 3])
    weight = mx.nd.array([[1], [2], [0], [5]])
    target = mx.nd.one_hot(label, 5) * 0.8 + 0.2 / 5
    expected = float(DENSE(logits, target, weight).mean().asscalar())
    assert objective_of(CE, 0.2, logits, label, weight) == pytest.approx(expected, rel=1e-5)


def test_ignored_labels_are_not_smoothed() -> None:
    logits = mx.nd.array(np.random.randn(2, 3, 2, 2))
    label = mx.nd.array([[[0, -1], [2, 1]], [[-1, -1], [-1, -1]]])
    valid = (label >= 0).asnumpy()
    log_prob = LOG(logits, axis=1).asnumpy()
    own = -np.take_along_axis(log_prob, np.maximum(label.asnumpy(), 0).astype(int)[:, None], 1)[:, 0]
    mixed = np.where(valid, 0.7 * own + 0.3 * -log_prob.mean(axis=1), 0)
    expected = (mixed.sum((1, 2)) / np.maximum(valid.sum((1, 2)), 1)).mean()
    assert objective_of(SegmentationCELoss(), 0.3, logits, label) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("axis", [-1, 1])
def test_padding_has_no_effect(axis: int) -> None:
    logits = np.random.randn(2, 3, 4).astype("float32")  # (N, T, V)
    logits[0, 2] = np.nan
    label, length = np.array([[0, 1, 0], [3, 2, 1]], "float32"), np.array([2, 3], "float32")
    expected = 0.0
    for n, t in ((0, 0), (0, 1), (1, 0), (1, 1), (1, 2)):
        log_prob = LOG(mx.nd.array(logits[n, t])).asnumpy()
        expected += -0.9 * log_prob[int(label[n, t])] - 0.1 * log_prob.mean()
    given = logits if axis == -1 else logits.transpose(0, 2, 1)
    found = objective_of(
        SequenceCELoss(axis=axis), 0.1, mx.nd.array(given), mx.nd.array(label), mx.nd.array(length)
    )
    assert found == pytest.approx(expected / 2, rel=1e-5)


@pytest.mark.parametrize(
    ("losses", "loss", "message"),
    [
        ({"l2": LossSpec(gluon.loss.L2Loss(), "y", "label")}, None, r'losses\["l2"\] is L2Loss; valid are'),
        ({"a": LossSpec(CE, "y", "label"), "b": LossSpec(DENSE, "y", "label")}, ["a", "b"],
         r'losses\["b"\] is SoftmaxCrossEntropyLoss; valid are .* with sparse_label=True'),
        ({"ce": LossSpec(CE, "y", "label")}, "cee", 'there is no loss "cee" .did you mean "ce".'),
    ],
)  # fmt: skip
def test_losses_that_cannot_be_smoothed_are_errors(losses: Any, loss: Any, message: str) -> None:
    with pytest.raises(SpecError, match=f"LabelSmoothing: {message}"):
        fit(LabelSmoothing(loss=loss), spec=TaskSpec(["y"], ["label"], losses))


@pytest.mark.parametrize("epsilon", [-0.1, 1, float("nan")])
def test_an_invalid_epsilon_is_an_error(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon is .*; valid is a finite number of at least 0 and below 1"):
        LabelSmoothing(epsilon)
