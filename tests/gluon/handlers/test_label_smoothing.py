"""LabelSmoothing."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from multifit import (
    LabelSmoothing,
    LabelSpec,
    LossSpec,
    MixUp,
    MultiEstimator,
    SpecError,
    TaskSpec,
    TrainerSpec,
)
from multifit.distributed import ALONE
from multifit.engines.scale import Scale
from multifit.gluon.handler_arrays import GluonArrays
from multifit.losses import SegmentationCELoss, SequenceCELoss
from tests.common.grids import two_settings
from tests.common.specs import CE, L2

import mxnet as mx  # isort: skip
from mxnet import gluon

from .training import assert_close, by_hand, fit

Softmax = gluon.loss.SoftmaxCELoss
DENSE = Softmax(sparse_label=False)


def smoothed(label: Any, epsilon: float = 0.1, classes: int = 3) -> Any:
    return mx.nd.one_hot(label, classes) * (1 - epsilon) + epsilon / classes


@two_settings
def test_training_equals_a_hand_written_loop(devices: Any, hybrid: bool) -> None:
    ours = fit(LabelSmoothing(), devices, hybrid)
    assert_close(ours, by_hand(lambda net, x, y: DENSE(net(x), smoothed(y))))


def test_one_loss_among_others() -> None:
    losses = {
        "smooth": LossSpec(CE, "y", "label", 0.5),
        "sharp": LossSpec(Softmax(), "y", "label"),
        "other": LossSpec(lambda out: (out**2).mean(axis=1), "y"),
    }

    def objective(net: Any, x: Any, y: Any) -> Any:
        out = net(x)
        return 0.5 * DENSE(out, smoothed(y, 0.2)) + CE(out, y) + (out**2).mean(axis=1)

    assert_close(fit(LabelSmoothing(0.2, "smooth"), losses=losses), by_hand(objective))


def test_labels_of_mixed_samples_are_smoothed() -> None:
    """The mixture of labels is smoothed, in whatever order the handlers are given."""
    random = np.random.RandomState(5)

    def objective(net: Any, x: Any, y: Any) -> Any:
        kept, order = random.beta(0.4, 0.4), mx.nd.array(random.permutation(6))
        label = kept * smoothed(y, 0.3) + (1 - kept) * smoothed(y[order], 0.3)
        return DENSE(net(kept * x + (1 - kept) * x[order]), label)

    assert_close(fit([LabelSmoothing(0.3), MixUp(random=5)]), by_hand(objective))


def objective_of(loss: Any, epsilon: float, logits: Any, label: Any, *more: Any) -> float:
    """Return the smoothed objective of a loss of these arguments, alone in its spec."""
    slots = dict(zip(["label", "more"], [label, *more]))
    spec = TaskSpec(outputs=["y"], labels=list(slots), losses={"ce": LossSpec(loss, "y", list(slots))})
    arrays = GluonArrays({}, ALONE)
    handler = LabelSmoothing(epsilon)
    estimator = SimpleNamespace(spec=spec, batch_axis=0, state=None, arrays=arrays)
    handler.train_begin(estimator)
    handler.batch_begin(estimator)
    handler.change_batch(estimator, slots)
    values, size = loss(logits, label, *more), len(logits)
    labels = {name: [array] for name, array in slots.items()}
    scale = Scale({"ce": 1.0}, {"ce": size}, {"ce": size})
    mean = [values.sum().reshape((1,)) / size]
    objectives = handler.change_objective(estimator, mean, {"y": [logits]}, labels, {"ce": [values]}, scale)
    return float(mx.nd.add_n(*objectives).asscalar())


@pytest.mark.parametrize(
    ("loss", "dense", "shape", "more"),
    [
        (CE, DENSE, (4, 5), [mx.nd.array([[1], [2], [0], [5]])]),
        (Softmax(weight=3), Softmax(weight=3, sparse_label=False), (4, 5), []),
        (Softmax(axis=1), Softmax(axis=1, sparse_label=False), (4, 5, 2, 3), []),
        (Softmax(from_logits=True), Softmax(from_logits=True, sparse_label=False), (4, 5), []),
        (SegmentationCELoss(None), Softmax(axis=1, sparse_label=False), (4, 5, 2, 3), []),
    ],
)
def test_each_loss_equals_the_dense_loss_of_smoothed_labels(loss, dense, shape, more) -> None:
    logits = mx.nd.array(np.random.randn(*shape))
    label = mx.nd.array(np.random.randint(0, 5, (shape[0], *shape[2:])).astype("float32"))
    target = smoothed(label, 0.2, 5)
    target = target if len(shape) == 2 else target.transpose((0, 3, 1, 2))
    expected = float(dense(logits, target, *more).mean().asscalar())
    assert objective_of(loss, 0.2, logits, label, *more) == pytest.approx(expected, rel=1e-5)


def test_ignored_labels_are_not_smoothed() -> None:
    logits = mx.nd.array(np.random.randn(2, 3, 2, 2))
    label = mx.nd.array([[[0, -1], [2, 1]], [[-1, -1], [-1, -1]]])
    valid = (label >= 0).asnumpy()
    log_prob = mx.nd.log_softmax(logits, axis=1).asnumpy()
    sharp = -np.take_along_axis(log_prob, np.maximum(label.asnumpy(), 0).astype(int)[:, None], 1)[:, 0]
    mixed = np.where(valid, 0.7 * sharp + 0.3 * -log_prob.mean(axis=1), 0)
    expected = (mixed.sum((1, 2)) / np.maximum(valid.sum((1, 2)), 1)).mean()
    assert objective_of(SegmentationCELoss(), 0.3, logits, label) == pytest.approx(expected, rel=1e-5)


class AddBias(gluon.nn.HybridBlock):
    """Adds a bias to a sample's scores; its change is the sum of the scores' gradients."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.bias = self.params.get("bias", shape=shape, init="zeros")

    def hybrid_forward(self, F: Any, x: Any, bias: Any) -> Any:
        return F.broadcast_add(x, F.expand_dims(bias, axis=0))


WEIGHTS, LENGTHS = np.array([[1], [2], [0.5], [1]], "float32"), np.array([3, 2, 1, 3], "float32")


@pytest.mark.parametrize(
    ("loss", "shape", "classes", "more", "mark"),
    [
        (CE, (5,), 0, [], -7),
        (CE, (5,), 0, [WEIGHTS], "nan"),
        (Softmax(weight=3, axis=1), (5, 3, 2), 0, [], "nan"),
        (Softmax(), (3, 2, 5), 2, [], -7),
        (SegmentationCELoss(None), (5, 3, 2), 0, [], "nan"),
        (SegmentationCELoss(), (5, 3, 2), 0, [WEIGHTS[:, 0]], -7),
        (SequenceCELoss(), (3, 5), 1, [LENGTHS], "nan"),
        (SequenceCELoss(axis=1), (5, 3), 0, [LENGTHS, WEIGHTS[:, 0]], -7),
    ],
)
def test_samples_without_a_label_are_left_out(loss, shape, classes, more, mark) -> None:
    """They change as little as if the batch did not hold them."""
    random = np.random.RandomState(0)
    scores = random.randn(4, *shape).astype("float32")
    label = random.randint(0, 5, (4, *np.delete(shape, classes))).astype("float32")
    label[[1, 3]] = float(mark)

    def change(rows: Any, slot: Any) -> Any:
        net = AddBias(*shape)
        net.initialize()
        names = ["more", "weight"][: len(more)]
        losses = {"ce": LossSpec(loss, "y", ["label", *names])}
        spec = TaskSpec(outputs=["y"], labels=[slot, *names], losses=losses)
        batch = [array[rows] for array in (scores, label, *more)]
        estimator = MultiEstimator(net, spec, TrainerSpec(".*", "sgd", {"learning_rate": 1.0}))
        estimator.fit([batch], epochs=1, event_handlers=LabelSmoothing(0.5))
        return net

    assert_close(change([0, 1, 2, 3], LabelSpec("label", missing=mark)), change([0, 2], "label"))


@pytest.mark.parametrize("axis", [-1, 1])
def test_padding_has_no_effect(axis: int) -> None:
    logits = np.random.randn(2, 3, 4).astype("float32")  # (N, T, V)
    logits[0, 2] = np.nan
    label, length = np.array([[0, 1, 0], [3, 2, 1]], "float32"), np.array([2, 3], "float32")
    expected = 0.0
    for n, t in ((0, 0), (0, 1), (1, 0), (1, 1), (1, 2)):
        log_prob = mx.nd.log_softmax(mx.nd.array(logits[n, t])).asnumpy()
        expected += -0.9 * log_prob[int(label[n, t])] - 0.1 * log_prob.mean()
    arrays = [logits if axis == -1 else logits.transpose(0, 2, 1), label, length]
    objective = objective_of(SequenceCELoss(axis=axis), 0.1, *map(mx.nd.array, arrays))
    assert objective == pytest.approx(expected / 2, rel=1e-5)


@pytest.mark.parametrize(
    ("losses", "loss", "message"),
    [
        ({"l2": LossSpec(L2, "y", "label")}, None, r'losses\["l2"\] is L2Loss; valid are'),
        ({"a": LossSpec(CE, "y", "label"), "b": LossSpec(DENSE, "y", "label")}, ["a", "b"],
         r'losses\["b"\] is SoftmaxCrossEntropyLoss; valid are .* with sparse_label=True'),
        ({"ce": LossSpec(CE, "y", "label")}, "cee", 'there is no loss "cee" .did you mean "ce".'),
    ],
)  # fmt: skip
def test_losses_that_cannot_be_smoothed_are_errors(losses: Any, loss: Any, message: str) -> None:
    with pytest.raises(SpecError, match=f"LabelSmoothing: {message}"):
        fit(LabelSmoothing(loss=loss), losses=losses)
