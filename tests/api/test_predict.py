"""predict(): one batch or many, with labels or without, joined or listed."""

import re
from collections.abc import Callable
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from multifit import DataError, MultiEstimator, TaskSpec
from tests.common.compare import assert_unchanged, snapshot
from tests.common.data import in_batches
from tests.common.grids import plain_or_hybrid
from tests.common.nets import hybridized, two_heads
from tests.common.specs import two_head_spec


@pytest.fixture
def estimator(batches: Any) -> MultiEstimator:
    estimator = MultiEstimator(two_heads(), two_head_spec())
    estimator.fit(batches, epochs=1)
    return estimator


@pytest.fixture
def expected(estimator: MultiEstimator, arrays: Any) -> dict[str, np.ndarray]:
    digit, size = estimator.net(mx.nd.array(arrays["image"]))
    return {"digit": digit.asnumpy(), "size": size.asnumpy()}


def assert_close(outputs: dict[str, Any], expected: dict[str, np.ndarray]) -> None:
    assert list(outputs) == list(expected)
    for name, value in expected.items():
        assert isinstance(outputs[name], np.ndarray)
        np.testing.assert_allclose(outputs[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def iterator(image: Any, labels: Any = None) -> Any:
    return mx.io.NDArrayIter({"a": image}, labels, batch_size=8)


MANY: dict[str, Callable[..., Any]] = {
    "loader": lambda *arrays: gluon.data.DataLoader(gluon.data.ArrayDataset(*arrays), batch_size=8),
    "list of tuples": lambda *arrays: in_batches(arrays),
    "list of arrays": lambda image, *_: [batch[0] for batch in in_batches([image])],
    "iterator": lambda image, *_: iterator(image),
    "iterator with labels": lambda image, digit, size: iterator(image, {"b": digit, "c": size}),
    "generator": lambda *arrays: (batch for batch in in_batches(arrays)),
}


@pytest.mark.parametrize("form, devices", [(form, 1 + i % 2) for i, form in enumerate(MANY)])
def test_many_batches(form: str, devices: int, arrays: Any) -> None:
    net = two_heads()
    estimator = MultiEstimator(net, two_head_spec(), context=[mx.cpu(i) for i in range(devices)])
    outputs = estimator.predict(MANY[form](*arrays.values()))
    digit, size = net(mx.nd.array(arrays["image"]))
    assert_close(outputs, {"digit": digit.asnumpy(), "size": size.asnumpy()})


def test_one_batch(estimator: MultiEstimator, arrays: Any, expected: Any) -> None:
    image, digit, size = arrays.values()
    batch = mx.io.DataBatch([mx.nd.array(image)], [mx.nd.array(digit), mx.nd.array(size)])
    for one in (
        image, image.astype("float64"), mx.nd.array(image), (image,), (image, digit, size),
        {"image": image}, dict(arrays), batch, mx.io.DataBatch([mx.nd.array(image)], None),
    ):  # fmt: skip
        assert_close(estimator.predict(one), expected)


def test_rows_that_fill_up_a_batch_are_dropped(estimator: MultiEstimator, arrays: Any, expected: Any) -> None:
    outputs = estimator.predict(mx.io.DataBatch([mx.nd.array(arrays["image"])], None, pad=3))
    assert_close(outputs, {name: value[:-3] for name, value in expected.items()})


@plain_or_hybrid
def test_shapes_that_differ_give_a_list(hybrid: bool) -> None:
    class Twice(gluon.HybridBlock):
        def hybrid_forward(self, F: Any, data: Any) -> Any:
            return data * 2, F.sum(data, axis=1)

    estimator = MultiEstimator(hybridized(Twice(), hybrid), TaskSpec(outputs=["twice", "sum"]))
    batches = [np.ones((3, length), "float32") for length in (2, 5, 2)]
    outputs = estimator.predict(batches)
    assert [piece.shape for piece in outputs["twice"]] == [(3, 2), (3, 5), (3, 2)]
    assert outputs["sum"].tolist() == [2] * 3 + [5] * 3 + [2] * 3


def test_an_output_without_batch_axis_gives_a_list() -> None:
    class Anchored(gluon.Block):
        def forward(self, data: Any) -> Any:
            return data, mx.nd.arange(5).reshape((1, 5)), mx.nd.array([1.0]).sum()

    outputs = MultiEstimator(Anchored(), TaskSpec(outputs=["data", "anchors", "norm"])).predict(
        np.ones((8, 2))
    )
    assert outputs["data"].shape == (8, 2)
    assert [piece.shape for piece in outputs["anchors"]] == [(1, 5)]
    assert isinstance(outputs["norm"], list)


def test_the_evaluating_form_is_used(arrays: Any) -> None:
    class Modes(gluon.Block):
        def forward(self, image: Any) -> Any:
            return image * (2 if mx.autograd.is_training() else 1)

    outputs = MultiEstimator(Modes(), TaskSpec(outputs="x", inputs=["image"])).predict(arrays["image"])
    np.testing.assert_array_equal(outputs["x"], arrays["image"])


def test_predicting_moves_nothing(estimator: MultiEstimator, arrays: Any, batches: Any) -> None:
    before, figures = snapshot(estimator.net), estimator.figures()
    estimator.predict(arrays["image"])
    assert estimator.figures() == figures
    assert_unchanged(estimator.net, before)


def test_inputs_of_the_wrong_width(estimator: MultiEstimator, arrays: Any) -> None:
    message = r"forward pass \(evaluate\), called with image \(20, 5\) float32"
    with pytest.raises(mx.MXNetError, match=message):
        estimator.predict(arrays["image"][:, :5])
    estimator.predict(arrays["image"])


@pytest.mark.parametrize(("shape", "convert"), [((6,), np.asarray), ((1, 8, 8), mx.nd.array)])
def test_one_sample_without_the_batch_axis(shape: tuple[int, ...], convert: Any) -> None:
    net = gluon.nn.Dense(2, in_units=6) if len(shape) == 1 else gluon.nn.Conv2D(2, 3, in_channels=1)
    net.initialize()
    sample = convert(np.ones(shape, "float32"))
    hint = r"an input lacks an axis: that of the batch \(give one sample x as x\[None\]\)"
    with pytest.raises(mx.MXNetError, match=hint):  # nothing is known about the samples
        MultiEstimator(net, TaskSpec(outputs=["x"])).predict(sample)
    estimator = MultiEstimator(net, TaskSpec(outputs=["x"]))
    assert len(estimator.predict(sample[None])["x"]) == 1
    text = rf'"data" is {re.escape(str(shape))} float32, a sample of .* give one sample x as x\[None\]'
    with pytest.raises(DataError, match=text):
        estimator.predict(sample)
