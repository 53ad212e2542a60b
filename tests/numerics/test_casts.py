"""Arrays with whose dtypes net or losses cannot run: they train as the same numbers in float32 do."""

from typing import Any

import numpy as np
import pytest

from multifit import LabelSpec, LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from tests.common.compare import assert_same_parameters, twins
from tests.common.grids import TWO
from tests.common.nets import hybridized, sequential

import mxnet as mx  # isort: skip
from mxnet import gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

L = gluon.loss
DTYPES = ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float64"]


def dense() -> Any:
    return sequential(nn.BatchNorm(in_channels=6), nn.Dense(5, "relu", in_units=6), nn.Dense(1, in_units=5))


def convolution() -> Any:
    layers = nn.MaxPool2D(2), nn.Conv2D(3, 2, in_channels=3), nn.Flatten(), nn.Dense(1, in_units=27)
    return sequential(*layers)


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


def spec_of(loss: Any = None, inputs: str = "x", label: Any = "t", **fields: Any) -> TaskSpec:
    losses = {"l": LossSpec(loss or L.L2Loss(), "y", "t")}
    return TaskSpec(outputs="y", labels=[label], losses=losses, inputs=list(inputs), **fields)


def in_batches(arrays: Any) -> list[Any]:
    batches = [tuple(array[rows] for array in arrays) for rows in (slice(8), slice(8, 16), slice(16, 21))]
    if arrays[0].ndim == 4:  # a list of NDArrays is not checked again if its form is known
        batches[:0] = [[nd.array(array, dtype=array.dtype) for array in batches[0]]] * 2
    return batches


def fit(net: Any, batches: Any, spec: TaskSpec, devices: Any = None) -> MultiEstimator:
    trainer = TrainerSpec(".*", "sgd", {"learning_rate": 0.01, "momentum": 0.9})
    estimator = MultiEstimator(net, spec, trainer, devices)
    estimator.fit(batches, batches, epochs=2, event_handlers=[])
    return estimator


SIX, ONES = numbers(21, 6), numbers(21, 1)
BITS = numbers(21, 6, top=2), numbers(21, 1, top=2)
# The net, its inputs, the label, the loss, the label's declaration, and which slots are cast: indices stay
# whole numbers, of which float32 has few; and running statistics move once in each batch.
CASES: dict[str, tuple[Any, list[Any], Any, Any, Any, str]] = {
    **{dtype: (dense, [BITS[0].astype(dtype)], BITS[1].astype(dtype), L.SigmoidBCELoss(), "t", "xt")
       for dtype in DTYPES},
    "L2": (dense, [SIX.astype("float32")], BITS[1], L.L2Loss(), "t", "t"),
    "hinge": (dense, [SIX.astype("float32")], BITS[1], L.HingeLoss(), "t", "t"),
    "logistic": (dense, [SIX.astype("float32")], BITS[1], L.LogisticLoss(label_format="binary"), "t", "t"),
    "Poisson": (dense, [SIX.astype("float32")], BITS[1], L.PoissonNLLLoss(), "t", "t"),
    "own": (dense, [SIX.astype("float32")], BITS[1], lambda y, t: nd.abs(y - t).mean(axis=1), "t", "t"),
    "images": (convolution, [numbers(21, 3, 8, 8, top=2).astype("uint8")], ONES.astype("int8"), L.L2Loss(),
               "t", "xt"),
    "some inputs": (Words, [numbers(21, 4, top=9), SIX, ONES], ONES.astype("float32"), L.L2Loss(), "t", "ws"),
    "missing labels": (dense, [SIX], ONES - 1, L.L2Loss(), LabelSpec("t", missing=-1), "xt"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_they_train_evaluate_and_predict_as_in_float32(case: str, caplog: Any) -> None:
    caplog.set_level("INFO", "multifit")
    make, inputs, label, loss, declared, cast = CASES[case]
    metrics = {"mae": mx.metric.MAE(), "rmse": mx.metric.RMSE(), "own": lambda t, y: float(t.sum())}
    figures = {name: MetricSpec(metric, "y", "t", mode="min") for name, metric in metrics.items()}
    spec = spec_of(loss, "xws"[: len(inputs)], declared, metrics=figures)
    floats = [array.astype("float32") for array in inputs]
    odd = list(CASES).index(case) % 2 == 1
    nets = [hybridized(net, odd) for net in twins(make, *floats)]
    batches = in_batches([*inputs, label]), in_batches([*floats, label.astype("float32")])
    devices = TWO if make is convolution else None
    one, other = (fit(net, data, spec, devices) for net, data in zip(nets, batches))
    assert_same_parameters(*nets, rtol=1e-6, atol=1e-6)
    assert one.history.last == pytest.approx(other.history.last, rel=1e-5)
    data = [tuple(array[:8] for array in arrays) for arrays in (inputs, floats)]
    np.testing.assert_allclose(one.predict(data[0])["y"], other.predict(data[1])["y"], rtol=1e-5)
    lines = [line for line in caplog.messages if " is cast to float32, batch by batch" in line]
    assert [*dict.fromkeys(line.split('"')[1] for line in lines)] == list(cast)
    if case == "images":
        line = 'the slot "x" is uint8 and is cast to float32, batch by batch; its values stay 0 … 255'
        assert lines[0] == line


@pytest.mark.parametrize("dtype", ["bool", "int64", "float16", "float64"])
def test_predicting_after_real_numbers(dtype: str) -> None:
    net, floats = hybridized(dense()), BITS[0].astype("float32")
    net.initialize()
    estimator = fit(net, in_batches([floats, floats[:, :1]]), spec_of())
    expected = estimator.predict(floats)["y"]
    for x in (BITS[0].astype(dtype), [BITS[0].astype(dtype)]):
        np.testing.assert_allclose(estimator.predict(x)["y"], expected, rtol=1e-5)


@pytest.mark.parametrize(("inputs", "label"), [("float16", "uint8"), ("bool", "int64")])
def test_later_batches_of_another_dtype(inputs: str, label: str) -> None:
    x, t = (array.astype("float32") for array in BITS)
    nets = twins(dense, x)
    for net, dtypes in zip(nets, ((inputs, label), ("float32", "float32"))):
        fit(net, [(x[:8], t[:8]), (x[8:].astype(dtypes[0]), t[8:].astype(dtypes[1]))], spec_of())
    assert_same_parameters(*nets, rtol=1e-6, atol=1e-6)


def test_a_net_of_float64() -> None:
    """Whole numbers, and float32, become float64."""

    def make() -> Any:
        net = dense()
        net.cast("float64")
        return net

    nets = twins(make, SIX.astype("float64"))
    for net, dtypes in zip(nets, (("int64", "int64"), ("float32", "float64"))):
        fit(net, in_batches([array.astype(dtype) for array, dtype in zip((SIX, ONES), dtypes)]), spec_of())
    assert_same_parameters(*nets, rtol=0, atol=0)


def wrong(y: Any, t: Any) -> Any:
    raise KeyError(np.dtype(t.dtype).name)


REFUSED: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "an error of the loss": (spec_of(wrong), SIX.astype("float32"), KeyError, "int64"),
    "an error of the net": (
        spec_of(wrong), numbers(21, 7), mx.MXNetError, r"the net's forward pass .* int64"
    ),
    "a dtype that was declared": (
        spec_of(None, "x", LabelSpec("t", dtype="int32")), SIX.astype("float32"), mx.MXNetError,
        "the dtypes differ",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("spec", "x", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_casting_does_not_mend_is_the_first_error(spec: Any, x: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        fit(dense(), in_batches([x, ONES]), spec)
