"""Batches whose samples are along another axis than the first, such as time-major ones."""

from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon, nd

from multifit import LossSpec, MetricSpec, MultiEstimator, SpecError, TaskSpec
from multifit.distributed import ALONE, World
from tests.common.grids import ONE, TWO, two_settings
from tests.common.hand_loop import SILENT, assert_trains_as_by_hand
from tests.common.handlers import handler
from tests.common.joint_training import ByShape
from tests.common.nets import hybridized
from tests.common.ranks import run_ranks

CE = gluon.loss.SoftmaxCrossEntropyLoss
CLASSES = 3


class TimeMajor(gluon.HybridBlock):
    """(T, N, C) -> (T, N, classes), and the last step's (N, classes)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = gluon.rnn.RNN(4, layout="TNC", input_size=5)
        self.head = gluon.nn.Dense(CLASSES, flatten=False, in_units=4)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        steps = self.head(self.body(x))
        return steps, F.squeeze(F.slice_axis(steps, axis=0, begin=-1, end=None), axis=0)


def batch(samples: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return x (T, N, 5) and y (T, N), in 0 … classes - 1."""
    random = np.random.RandomState(samples + steps)
    x = random.normal(size=(steps, samples, 5)).astype("float32")
    return x, random.randint(0, CLASSES, (steps, samples)).astype("float32")


def spec(loss_axis: int = 1, **metrics: Any) -> TaskSpec:
    loss = LossSpec(CE(batch_axis=loss_axis), outputs="steps", labels="y")
    return TaskSpec(
        outputs=["steps", "last"], labels=["y"], losses={"y": loss}, metrics=metrics, unused=["last"]
    )


ACCURACY = {"accuracy": MetricSpec(mx.metric.Accuracy(axis=2), outputs="steps", labels="y")}
SIZES = [(6, 6), (6, 6), (6, 6), (5, 3), (6, 4), (1, 2), (7, 6)]  # samples and steps


@pytest.mark.parametrize(
    ("loss_axis", "devices", "hybrid"), [(1, ONE, False), (1, TWO, True), (0, ONE, True)],
    ids=["one device", "two devices, hybridized", "a loss that averages the samples"],
)  # fmt: skip
def test_training_equals_the_hand_written_loop(loss_axis: int, devices: list, hybrid: bool) -> None:
    loss = CE(batch_axis=loss_axis)
    assert_trains_as_by_hand(
        TimeMajor, spec(loss_axis, **ACCURACY), [batch(*size) for size in SIZES],
        lambda net, x, y: loss(net(x)[0], y), devices, hybrid, by=lambda x: x.shape[1], batch_axis=1,
    )  # fmt: skip


def test_a_loss_that_averages_the_samples_is_refused_on_two_devices() -> None:
    """The means of both would be added."""
    with pytest.raises(SpecError) as caught:
        MultiEstimator(TimeMajor(), spec(0), context=TWO).fit([batch(6, 6)], epochs=1, batch_axis=1)
    assert str(caught.value).endswith(
        "its batch_axis is 0, but the samples of outputs.steps (6, 3, 3) are along axis 1; "
        "give the loss batch_axis=1; if it does not take that, train on one device"
    )


@two_settings
def test_figures_and_predictions(devices: list, hybrid: bool) -> None:
    net = TimeMajor()
    net.initialize(ctx=devices)
    estimator = MultiEstimator(hybridized(net, hybrid), spec(**ACCURACY))
    batches = [batch(*size) for size in SIZES]
    outputs = [net(nd.array(x, ctx=devices[0]))[0] for x, _ in batches]
    loss = sum(
        float(CE(batch_axis=1)(o, nd.array(y)).sum().asscalar()) for o, (_, y) in zip(outputs, batches)
    )
    right = sum(int((o.asnumpy().argmax(axis=2) == y).sum()) for o, (_, y) in zip(outputs, batches))
    seen: list[int] = []
    watch = handler(evaluate_batch_end=lambda estimator: seen.append(estimator.batch_axis))
    figures = estimator.evaluate(batches, watch, batch_axis=1)
    assert figures["loss"] == pytest.approx(loss / sum(samples for samples, _ in SIZES), rel=1e-5)
    assert figures["accuracy"] == right / sum(y.size for _, y in batches)
    assert set(seen) == {1} and estimator.batch_axis == 0

    data = [x[:5] for x, _ in batches[:3]]
    predicted = estimator.predict(data, batch_axis=1)
    expected = np.concatenate([net(nd.array(x, ctx=devices[0]))[0].asnumpy() for x in data], axis=1)
    np.testing.assert_allclose(predicted["steps"], expected, rtol=1e-4, atol=1e-6)
    # with a sample for each class on both devices, it could be either axis
    last = np.concatenate(predicted["last"]) if len(devices) == 2 else predicted["last"]
    assert isinstance(predicted["last"], list) == (len(devices) == 2)
    np.testing.assert_allclose(last, expected[-1], rtol=1e-4, atol=1e-6)


def last_is_right(y: Any, outputs: Any) -> float:
    """Return how often the last step is right, having seen whole arrays: y (T, N), outputs (T, N, C)."""
    steps, last, *losses = outputs
    assert steps.shape == (*y.shape, CLASSES) and all(loss.shape == y.shape[1:] for loss in losses)
    np.testing.assert_array_equal(steps[-1], last)
    return float((last.argmax(axis=1) == y[-1]).mean())


OUTPUTS = ["steps", "last"]
WHOLE = {
    "slots": {},
    "losses": {"losses": "y"},
    "transformed": {"transform": lambda steps, last, y: (y, [steps, last])},
}


@pytest.mark.parametrize("name", WHOLE)
def test_functions_get_what_all_devices_and_ranks_have_as_one(name: str) -> None:
    batches = [batch(*size) for size in [(8, 5), (5, 5), (1, 5), (7, 5)]]

    def evaluate(world: World, devices: int = 1) -> float:
        net = TimeMajor()
        net.initialize(ByShape(0), ctx=[mx.cpu(i) for i in range(devices)])
        metric = MetricSpec(last_is_right, OUTPUTS, "y", **WHOLE[name])
        return MultiEstimator(net, spec(last=metric), world=world).evaluate(batches, batch_axis=1)["last"]

    whole = evaluate(ALONE)
    assert evaluate(ALONE, devices=2) == whole
    assert run_ranks(2, evaluate) == [whole, whole]


def test_a_fit_validates_and_counts_along_its_axis() -> None:
    data = [batch(6, 4), batch(3, 2)]
    estimator = MultiEstimator(TimeMajor(), spec(**ACCURACY))
    estimator.check(data, data, batch_axis=1)
    estimator.find_learning_rate(data, batches=10, batch_axis=1)
    estimator.profile(data, batches=2, batch_axis=1)
    history = estimator.fit(data, data, epochs=2, event_handlers=SILENT, batch_axis=1)
    assert estimator.state.samples == 18 and len(history["val_accuracy"]) == 2
    assert estimator.evaluate(data, batch_axis=1)["loss"] == pytest.approx(history["val_loss"][-1])


@pytest.mark.parametrize("method", ["fit", "check", "evaluate", "predict", "find_learning_rate", "profile"])
def test_an_axis_that_cannot_be(method: str) -> None:
    estimator = MultiEstimator(TimeMajor(), spec())
    options = {"epochs": 1} if method == "fit" else {}
    with pytest.raises(ValueError, match="batch_axis is -3; valid is an? .*at least 0"):
        getattr(estimator, method)([batch(6, 4)], batch_axis=-3, **options)
    assert estimator.state.step == 0
