"""Arrays with whose dtypes net or losses cannot run: they train as the same numbers in float32 do."""

import logging
from typing import Any

import numpy as np
import pytest

from multifit import LabelSpec, LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from tests.common.compare import assert_same_parameters, snapshot, twins
from tests.common.grids import two_settings

import mxnet as mx  # isort: skip
from mxnet import gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

L = gluon.loss
DTYPES = ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float64"]


def dense() -> Any:
    net = nn.HybridSequential()
    net.add(nn.BatchNorm(in_channels=6), nn.Dense(5, "relu", in_units=6), nn.Dense(1, in_units=5))
    return net


def convolution() -> Any:
    net = nn.HybridSequential()
    net.add(nn.MaxPool2D(2), nn.Conv2D(3, 2, in_channels=3), nn.Flatten(), nn.Dense(1, in_units=27))
    return net


class Words(gluon.HybridBlock):
    """Embeds words, and adds features, which a dense layer takes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm(in_channels=4)
        self.words, self.features = nn.Embedding(9, 1), nn.Dense(1, in_units=6)

    def hybrid_forward(self, F: Any, words: Any, features: Any, shift: Any) -> Any:
        embedded = self.norm(F.reshape(self.words(words), (0, -1)))
        return F.broadcast_add(self.features(features), F.sum(embedded, axis=1, keepdims=True)) + shift


def numbers(*shape: int, top: int = 3) -> np.ndarray:
    return np.random.RandomState(len(shape)).randint(0, top, shape)


def fit(net: Any, arrays: Any, spec: TaskSpec, **options: Any) -> MultiEstimator:
    trainer = TrainerSpec(".*", "sgd", {"learning_rate": 0.01, "momentum": 0.9})
    estimator = MultiEstimator(net, spec, trainer, **options)
    rows = slice(8), slice(8, 16), slice(16, 21)
    batches = [tuple(array[each] for array in arrays) for each in rows]
    if arrays[0].ndim == 4:
        # a list of NDArrays is not checked again if its form is known
        batches[:0] = [[nd.array(array, dtype=array.dtype) for array in batches[0]]] * 2
    estimator.fit(batches, batches, epochs=2, event_handlers=[])
    return estimator


def assert_cast(make: Any, inputs: list[np.ndarray], label: np.ndarray, loss: Any, **options: Any) -> Any:
    """Check that arrays train, evaluate and predict as the same numbers in float32 do."""
    names = ["x", "w", "s"][: len(inputs)]
    declared, hybridized = options.pop("declared", "t"), options.pop("hybridized", False)
    metrics = {"mae": mx.metric.MAE(), "rmse": mx.metric.RMSE(), "own": lambda t, y: float(t.sum())}
    spec = TaskSpec(
        outputs="y", labels=[declared], losses={"l": LossSpec(loss, "y", "t")}, inputs=names,
        metrics={name: MetricSpec(metric, "y", "t", mode="min") for name, metric in metrics.items()},
    )  # fmt: skip
    floats = [array.astype("float32") for array in inputs]
    nets = twins(make, *[array.astype("float32") for array in inputs])
    for net in nets if hybridized else ():
        net.hybridize()
    one, other = (
        fit(net, arrays, spec, **options)
        for net, arrays in zip(nets, ([*inputs, label], [*floats, label.astype("float32")]))
    )
    assert_same_parameters(*nets, rtol=1e-6, atol=1e-6)
    assert one.history.last == pytest.approx(other.history.last, rel=1e-5)
    data = [tuple(array[:8] for array in arrays) for arrays in (inputs, floats)]
    np.testing.assert_allclose(one.predict(data[0])["y"], other.predict(data[1])["y"], rtol=1e-5)
    return one


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_and_labels_of_every_dtype(dtype: str) -> None:
    inputs, label = numbers(21, 6, top=2).astype(dtype), numbers(21, 1, top=2).astype(dtype)
    hybridized = DTYPES.index(dtype) % 2 == 1
    assert_cast(dense, [inputs], label, L.SigmoidBCELoss(), hybridized=hybridized)


@pytest.mark.parametrize("dtype", ["bool", "int64", "float16", "float64"])
def test_predicting_after_real_numbers(dtype: str) -> None:
    spec = TaskSpec(outputs="y", labels=["t"], losses={"l": LossSpec(L.L2Loss(), "y", "t")}, inputs=["x"])
    net, inputs = dense(), numbers(21, 6, top=2)
    net.initialize()
    net.hybridize()
    floats = inputs.astype("float32")
    estimator = fit(net, [floats, floats[:, :1]], spec)
    for x in (inputs.astype(dtype), [inputs.astype(dtype)]):
        np.testing.assert_allclose(estimator.predict(x)["y"], estimator.predict(floats)["y"], rtol=1e-5)


@pytest.mark.parametrize(("inputs", "label"), [("float16", "uint8"), ("bool", "int64")])
def test_later_batches_of_another_dtype(inputs: str, label: str) -> None:
    spec = TaskSpec(outputs="y", labels=["t"], losses={"l": LossSpec(L.L2Loss(), "y", "t")}, inputs=["x"])
    x, t = (numbers(21, n, top=2).astype("float32") for n in (6, 1))
    nets = twins(dense, x)
    trainer = TrainerSpec(".*", "sgd", {"learning_rate": 0.01})
    for net, dtypes in zip(nets, ((inputs, label), ("float32", "float32"))):
        batches = [(x[:8], t[:8]), (x[8:].astype(dtypes[0]), t[8:].astype(dtypes[1]))]
        MultiEstimator(net, spec, trainer).fit(batches, batches, epochs=2, event_handlers=[])
    assert_same_parameters(*nets, rtol=1e-6, atol=1e-6)


LOSSES = {
    "L2": L.L2Loss(), "hinge": L.HingeLoss(), "logistic": L.LogisticLoss(label_format="binary"),
    "Poisson": L.PoissonNLLLoss(), "own": lambda y, t: nd.abs(y - t).mean(axis=1),
}  # fmt: skip


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_whole_numbers_as_labels_of_losses(loss: Any) -> None:
    assert_cast(dense, [numbers(21, 6).astype("float32")], numbers(21, 1, top=2), loss)


@two_settings
def test_images_of_bytes(devices: Any, hybrid: bool, caplog: Any) -> None:
    images = numbers(21, 3, 8, 8, top=2).astype("uint8")
    options = {"hybridized": hybrid, "context": devices}
    with caplog.at_level(logging.INFO, logger="multifit"):
        assert_cast(convolution, [images], numbers(21, 1).astype("int8"), L.L2Loss(), **options)
    lines = [record.getMessage() for record in caplog.records if " is cast " in record.getMessage()]
    assert lines == [
        'the slot "x" is uint8 and is cast to float32, batch by batch; its values stay 0 … 255',
        'the slot "t" is int8 and is cast to float32, batch by batch',
    ]


def test_only_inputs_that_need_it_are_cast(caplog: Any) -> None:
    """Indices stay whole numbers, of which float32 has few; running statistics move once in each batch."""
    inputs = [numbers(21, 4, top=9), numbers(21, 6), numbers(21, 1)]
    with caplog.at_level(logging.INFO, logger="multifit"):
        assert_cast(Words, inputs, numbers(21, 1).astype("float32"), L.L2Loss())
    lines = [record.getMessage() for record in caplog.records if " is cast " in record.getMessage()]
    assert lines == [f'the slot "{name}" is int64 and is cast to float32, batch by batch' for name in "ws"]


def test_labels_that_may_be_missing() -> None:
    assert_cast(dense, [numbers(21, 6)], numbers(21, 1) - 1, L.L2Loss(), declared=LabelSpec("t", missing=-1))


def test_a_net_of_float64() -> None:
    """Whole numbers, and float32, become float64."""
    net, other = dense(), dense()
    for each in (net, other):
        each.cast("float64")
        each.initialize(mx.init.One())
    x, t = numbers(21, 6), numbers(21, 1)
    spec = TaskSpec(outputs="y", labels=["t"], losses={"l": LossSpec(L.L2Loss(), "y", "t")}, inputs=["x"])
    fit(net, (x, t), spec)
    fit(other, (x.astype("float32"), t.astype("float64")), spec)
    np.testing.assert_equal(*(list(snapshot(each).values()) for each in (net, other)))


def test_what_casting_does_not_mend_is_the_first_error() -> None:
    def wrong(y: Any, t: Any) -> Any:
        raise KeyError(np.dtype(t.dtype).name)

    spec = TaskSpec(outputs="y", labels=["t"], losses={"l": LossSpec(wrong, "y", "t")}, inputs=["x"])
    with pytest.raises(KeyError, match="int64"):
        fit(dense(), (numbers(21, 6).astype("float32"), numbers(21, 1)), spec)
    with pytest.raises(mx.MXNetError, match=r"the net's forward pass .* int64"):
        fit(dense(), (numbers(21, 7), numbers(21, 1)), spec)


def test_a_declared_dtype_is_kept() -> None:
    losses = {"l": LossSpec(L.L2Loss(), "y", "t")}
    spec = TaskSpec(outputs="y", labels=[LabelSpec("t", dtype="int32")], losses=losses, inputs=["x"])
    with pytest.raises(mx.MXNetError, match="the dtypes differ"):
        fit(dense(), (numbers(21, 6).astype("float32"), numbers(21, 1)), spec)
