"""All kinds of arrays in a batch, and batches in other forms."""

from typing import Any

import mxnet as mx
import numpy as np
import pandas
import pytest
from mxnet import gluon

from multifit import MultiEstimator, TaskSpec
from tests.api.test_data import reference, trained
from tests.common.grids import two_settings
from tests.common.hand_loop import assert_trains_as_by_hand
from tests.common.nets import hybridized, two_heads
from tests.common.specs import L2, two_head_spec


class Products(gluon.HybridBlock):
    """A product that MXNet computes for sparse arrays without making them dense."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = self.params.get("weight", shape=(6, 1))

    def hybrid_forward(self, F: Any, data: Any, weight: Any) -> Any:
        return F.dot(data, weight)


@two_settings
def test_sparse_inputs_with_other_numbers_of_values(devices: list, hybrid: bool) -> None:
    random = np.random.RandomState(0)
    shares = [(8, 0.5), (8, 0.2), (8, 0.9), (8, 0.4), (5, 0.5), (8, 0.0), (8, 0.3)]
    drawn = [(random.rand(n, 6) < share, random.rand(n, 6), random.rand(n, 1)) for n, share in shares]
    batches = [((there * x).astype("float32"), y.astype("float32")) for there, x, y in drawn]
    spec = TaskSpec(outputs=["y"], labels=["y"], losses={"y": L2})
    assert_trains_as_by_hand(
        Products, spec, batches, lambda net, x, y: L2(net(x), y), devices, hybrid,
        fed=[(mx.nd.array(x).tostype("csr"), y) for x, y in batches],
    )  # fmt: skip


def test_float64_is_cast_and_logged_once(batches: Any, log: Any) -> None:
    wide = [(i.astype("float64"), d, s.astype("float64")) for i, d, s in batches]
    estimator = MultiEstimator(two_heads(), two_head_spec())
    history = estimator.fit(wide, wide, epochs=2)
    estimator.fit(wide, epochs=1)
    assert np.isfinite(history["val_loss"]).all()
    assert sorted(line for line in log() if "float64" in line) == [
        'the slot "image" is float64 and is cast to float32, batch by batch',
        'the slot "size" is float64 and is cast to float32, batch by batch',
    ]


class Lazy:
    """Offers an array, as a torch tensor or a JAX array does."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self) -> np.ndarray:
        return self.array


def test_array_likes(arrays: Any) -> None:
    image, digit, size = arrays.values()
    estimator = MultiEstimator(two_heads(), two_head_spec())
    expected = estimator.evaluate([(image, digit, size)])
    for batch in (
        (Lazy(image), digit.astype("int64"), size),
        (image, pandas.Series(digit), pandas.DataFrame(size)),
        (mx.nd.array(image, dtype="float64"), mx.nd.array(digit, dtype="uint8"), size.astype("float64")),
    ):
        assert estimator.evaluate([batch]) == pytest.approx(expected, rel=1e-5)


class Optional(gluon.HybridBlock):
    def __init__(self) -> None:
        super().__init__()
        self.head = gluon.nn.Dense(1)

    def hybrid_forward(self, F: Any, data: Any, mask: Any = None) -> Any:
        return self.head(data if mask is None else F.broadcast_mul(data, mask))


@two_settings
def test_an_input_may_be_none(devices: list, hybrid: bool, arrays: Any) -> None:
    net = hybridized(Optional(), hybrid)
    spec = TaskSpec(inputs=["data", "mask"], outputs=["y"], labels=["y"], losses={"y": L2})
    batch = {"data": arrays["image"], "mask": None, "y": arrays["size"]}
    estimator = MultiEstimator(net, spec, context=devices)
    history = estimator.fit([batch] * 2, [batch], epochs=2)
    assert history["train_loss"][1] < history["train_loss"][0]
    assert estimator.predict(batch)["y"].shape == (20, 1)


class Unused(gluon.HybridBlock):
    def __init__(self) -> None:
        super().__init__()
        self.head = gluon.nn.Dense(1, in_units=6)

    def hybrid_forward(self, F: Any, data: Any, more: Any) -> Any:
        return self.head(data)


@two_settings
def test_an_input_may_be_unused(devices: list, hybrid: bool, arrays: Any) -> None:
    spec = TaskSpec(inputs=["data", "more"], outputs=["y"], labels=["y"], losses={"y": L2})
    estimator = MultiEstimator(hybridized(Unused(), hybrid), spec, context=devices)
    batch = {"data": arrays["image"], "more": arrays["image"], "y": arrays["size"]}
    history = estimator.fit([batch] * 2, epochs=2)
    assert history["train_loss"][1] < history["train_loss"][0]


class Record:
    """A batch of a type of the user's own."""

    def __init__(self, image: Any, digit: Any, size: Any) -> None:
        self.image, self.digit, self.size = image, digit, size


@pytest.mark.parametrize(
    "changes, form",
    [
        (
            {"batch": ["size", "index", "digit", "image"], "unused": ["index"]},
            lambda image, digit, size: (size, np.arange(len(digit)), digit, image),
        ),
        ({"batch_fn": vars}, Record),
    ],
    ids=["another order", "batch_fn"],
)
def test_a_spec_can_describe_batches_of_another_form(changes: Any, form: Any, batches: Any) -> None:
    figures = trained([form(*batch) for batch in batches], **changes)
    assert figures == reference()
