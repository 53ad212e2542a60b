"""evaluate(): figures, other specs for evaluating, other forms of calling the net."""

from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn

from multifit import LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from tests.common.compare import assert_unchanged, snapshot
from tests.common.grids import plain_or_hybrid
from tests.common.nets import hybridized, two_heads
from tests.common.specs import CE, L2, two_head_spec


def test_the_figures_are_means_over_samples(arrays: Any, batches: Any) -> None:
    net = two_heads()
    found = MultiEstimator(net, two_head_spec()).evaluate(batches)
    digit, size = net(mx.nd.array(arrays["image"]))
    cross = CE(digit, mx.nd.array(arrays["digit"])).mean().asscalar()
    square = L2(size, mx.nd.array(arrays["size"])).mean().asscalar()
    right = (digit.asnumpy().argmax(axis=1) == arrays["digit"]).mean()
    assert found == pytest.approx(
        {"loss": cross + square, "digit": cross, "size": square, "accuracy": right}, rel=1e-5
    )


def test_it_moves_nothing_and_needs_no_trainer(batches: Any) -> None:
    estimator = MultiEstimator(two_heads(), two_head_spec(), trainers="nonsense")
    first = estimator.evaluate(iter(batches))
    assert len(estimator.net.calls) == 3 + 1  # each batch once, and the check
    before = snapshot(estimator.net)
    assert estimator.evaluate(batches) == first
    assert estimator.state.step == estimator.history.epochs == 0
    assert_unchanged(estimator.net, before)


def share(truth: Any, found: Any) -> float:
    return float((truth == found).mean())


class Detector(gluon.HybridBlock):
    """As SSD: raw outputs in training, another form and number of outputs when evaluating."""

    def __init__(self) -> None:
        super().__init__()
        self.traces = 0
        self.head = nn.Dense(2)

    def hybrid_forward(self, F: Any, image: Any) -> Any:
        self.traces += 1
        raw = self.head(image)
        if mx.autograd.is_training():
            return raw, raw * 2
        return F.argmax(raw, axis=1)


@plain_or_hybrid
def test_another_spec_for_evaluating(hybrid: bool, arrays: Any) -> None:
    image, size = arrays["image"], arrays["size"]
    truth = (image[:, 0] > 0).astype("float32")
    evaluate = TaskSpec(
        inputs=["image"], outputs=["id"], labels=["truth", "spare"], unused=["spare"],
        metrics={"hits": MetricSpec(share, "id", "truth", mode="max")},
    )  # fmt: skip
    spec = TaskSpec(
        inputs=["image"], outputs=["raw", "twice"], labels=["target"], unused=["twice"],
        losses={"box": LossSpec(L2, "raw", "target")}, evaluate=evaluate,
    )  # fmt: skip
    net = hybridized(Detector(), hybrid)
    estimator = MultiEstimator(net, spec, TrainerSpec(".*", "adam", {"learning_rate": 0.05}))
    train = [(image, np.concatenate([-image[:, :1], image[:, :1]], axis=1))] * 4
    history = estimator.fit(train, [(image, truth, size)], epochs=10)
    assert list(history) == ["train_loss", "train_box", "lr", "val_hits"]
    assert estimator.evaluate([(image, truth, size)]) == {"hits": history["val_hits"][-1]}
    assert history["val_hits"][-1] > 0.8
    assert estimator.predict(image)["id"].shape == (20,)
    assert estimator.direction("val_hits") == "max"
    if hybrid:  # each mode is traced for its check and for its graph, for all epochs, and once for predicting
        assert net.traces <= 7


def test_losses_and_forward_of_the_evaluating_spec(batches: Any) -> None:
    def nothing(net: Any, slots: Any) -> Any:
        digit, size = net(slots["image"])
        return digit, size * 0

    evaluate = two_head_spec(losses={"size": gluon.loss.L1Loss()}, forward=nothing)
    history = MultiEstimator(two_heads("hybridized"), two_head_spec(evaluate=evaluate)).fit(
        batches, batches, epochs=1
    )
    size = np.abs(np.concatenate([batch[2] for batch in batches])).mean()
    assert history["val_loss"] == history["val_size"] == [pytest.approx(size, rel=1e-5)]
    assert "val_digit" not in history and history["val_size"] != history["train_size"]


def test_the_users_metric_objects_are_not_mixed(batches: Any) -> None:
    metric = mx.metric.Accuracy()
    spec = two_head_spec(metrics={"accuracy": MetricSpec(metric, "digit", "digit")})
    estimator = MultiEstimator(two_heads(), spec)
    history = estimator.fit(batches, batches[:1], epochs=1)
    estimator.evaluate(batches[1:2])
    assert metric.get() == ("accuracy", history["train_accuracy"][0])


def test_figures_of_an_unknown_stage_are_an_error() -> None:
    with pytest.raises(ValueError, match="""figures: stage is 'val'; valid is "train" or "evaluate\""""):
        MultiEstimator(two_heads(), two_head_spec()).figures("val")
