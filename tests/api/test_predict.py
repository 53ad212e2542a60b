"""predict(): one batch or many, with labels or without, joined or listed."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from multifit import DataError, MultiEstimator, SpecError, TaskSpec


@pytest.fixture
def estimator(make_net: Any, make_spec: Any, batches: Any) -> MultiEstimator:
    estimator = MultiEstimator(make_net(), make_spec())
    estimator.fit(batches, epochs=1)
    return estimator


@pytest.fixture
def expected(estimator: MultiEstimator, arrays: Any) -> dict[str, np.ndarray]:
    digit, size = estimator.net(mx.nd.array(arrays["image"]))
    return {"digit": digit.asnumpy(), "size": size.asnumpy()}


def same(found: dict[str, Any], expected: dict[str, np.ndarray]) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert isinstance(found[name], np.ndarray)
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def many(form: str, arrays: Any, batches: Any) -> Any:
    image, digit, size = arrays.values()
    if form == "loader":
        return gluon.data.DataLoader(gluon.data.ArrayDataset(image, digit, size), batch_size=8)
    if form == "images alone":
        return gluon.data.DataLoader(gluon.data.ArrayDataset(image), batch_size=8)
    if form == "list of tuples":
        return batches
    if form == "list of arrays":
        return [batch[0] for batch in batches]
    if form == "iterator":
        return mx.io.NDArrayIter(image, None, batch_size=8)
    if form == "iterator with labels":
        return mx.io.NDArrayIter({"a": image}, {"b": digit, "c": size}, batch_size=8)
    return (batch for batch in batches)


@pytest.mark.parametrize(
    "form",
    [
        "loader",
        "images alone",
        "list of tuples",
        "list of arrays",
        "iterator",
        "iterator with labels",
        "generator",
    ],
)
@pytest.mark.parametrize("devices", [1, 2])
def test_many_batches(
    form: str, devices: int, arrays: Any, batches: Any, make_net: Any, make_spec: Any
) -> None:
    net = make_net()
    estimator = MultiEstimator(net, make_spec(), context=[mx.cpu(i) for i in range(devices)])
    found = estimator.predict(many(form, arrays, batches))
    digit, size = net(mx.nd.array(arrays["image"]))
    same(found, {"digit": digit.asnumpy(), "size": size.asnumpy()})


def test_one_batch(estimator: MultiEstimator, arrays: Any, expected: Any) -> None:
    image, digit, size = arrays.values()
    batch = mx.io.DataBatch([mx.nd.array(image)], [mx.nd.array(digit), mx.nd.array(size)])
    for one in (
        image, mx.nd.array(image), (image,), (image, digit, size), {"image": image}, dict(arrays), batch,
        mx.io.DataBatch([mx.nd.array(image)], None),
    ):  # fmt: skip
        same(estimator.predict(one), expected)


def test_rows_that_fill_up_a_batch_are_dropped(estimator: MultiEstimator, arrays: Any, expected: Any) -> None:
    found = estimator.predict(mx.io.DataBatch([mx.nd.array(arrays["image"])], None, pad=3))
    same(found, {name: value[:-3] for name, value in expected.items()})


def test_float64_is_cast(estimator: MultiEstimator, arrays: Any, expected: Any) -> None:
    same(estimator.predict(arrays["image"].astype("float64")), expected)


@pytest.mark.parametrize("hybridize", [False, True])
def test_shapes_that_differ_give_a_list(hybridize: bool) -> None:
    class Twice(gluon.HybridBlock):
        def hybrid_forward(self, F: Any, data: Any) -> Any:
            return data * 2, F.sum(data, axis=1)

    net = Twice()
    if hybridize:
        net.hybridize()
    estimator = MultiEstimator(net, TaskSpec(outputs=["twice", "sum"]))
    batches = [np.ones((3, length), "float32") for length in (2, 5, 2)]
    found = estimator.predict(batches)
    assert [piece.shape for piece in found["twice"]] == [(3, 2), (3, 5), (3, 2)]
    assert found["sum"].tolist() == [2] * 3 + [5] * 3 + [2] * 3


def test_an_output_without_batch_axis_gives_a_list() -> None:
    class Anchored(gluon.Block):
        def forward(self, data: Any) -> Any:
            return data, mx.nd.arange(5).reshape((1, 5)), mx.nd.array([1.0]).sum()

    found = MultiEstimator(Anchored(), TaskSpec(outputs=["data", "anchors", "norm"])).predict(np.ones((8, 2)))
    assert found["data"].shape == (8, 2)
    assert [piece.shape for piece in found["anchors"]] == [(1, 5)]
    assert isinstance(found["norm"], list)


def test_the_evaluating_form_is_used(make_net: Any, make_spec: Any, arrays: Any) -> None:
    class Modes(gluon.Block):
        def forward(self, image: Any) -> Any:
            return image * (2 if mx.autograd.is_training() else 1)

    found = MultiEstimator(Modes(), TaskSpec(outputs="x", inputs=["image"])).predict(arrays["image"])
    np.testing.assert_array_equal(found["x"], arrays["image"])


def test_predicting_moves_nothing(
    estimator: MultiEstimator, arrays: Any, batches: Any, snapshot: Any
) -> None:
    before, figures = snapshot(estimator.net), estimator.figures()
    estimator.predict(arrays["image"])
    assert estimator.figures() == figures
    for name, value in snapshot(estimator.net).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_what_does_not_fit(estimator: MultiEstimator, make_net: Any, make_spec: Any, arrays: Any) -> None:
    with pytest.raises(DataError, match=r"or the inputs alone: .image."):
        estimator.predict((arrays["image"], arrays["digit"]))
    with pytest.raises(DataError, match="holds no sample"):
        estimator.predict(arrays["image"][:0])
    with pytest.raises(DataError, match="data is empty"):
        estimator.predict([])
    spec = TaskSpec(inputs=["image"], outputs=["digit"])
    with pytest.raises(SpecError, match="returns 2 arrays"):
        MultiEstimator(make_net(), spec).predict(arrays["image"])
