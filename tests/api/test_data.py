"""All kinds of loaders and batches, and all kinds of arrays in them, train equally."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import mxnet as mx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from mxnet import gluon

import multifit
from multifit import LossSpec, MultiEstimator, Shards, TaskSpec, TrainerSpec
from tests.common.data import in_batches, two_head_arrays
from tests.common.grids import two_settings
from tests.common.hand_loop import assert_trains_as_by_hand
from tests.common.nets import hybridized, two_heads
from tests.common.specs import L2, two_head_spec

NAMES = ["image", "digit", "size"]
SHARED = mx.Context("cpu_shared", 0)


class Dali:
    """As DALI's iterator for MXNet: a list of DataBatches, one for each of its devices, and a reset()."""

    def __init__(self, batches: Any, devices: int = 1) -> None:
        self.batches, self.devices, self.position = batches, devices, 0

    def __iter__(self) -> Dali:
        return self

    def __next__(self) -> list[Any]:
        if self.position >= len(self.batches):
            raise StopIteration
        self.position += 1
        parts = zip(*[np.array_split(a, self.devices) for a in self.batches[self.position - 1]])
        return [mx.io.DataBatch([mx.nd.array(i)], [mx.nd.array(d), mx.nd.array(s)]) for i, d, s in parts]

    def reset(self) -> None:
        self.position = 0


class NoLength(gluon.data.Sampler):
    """A sampler of batches without length."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from (list(range(i, min(i + 8, 20))) for i in (0, 8, 16))

    def __len__(self) -> int:
        raise TypeError("unknown")


class NamedDali(Dali):
    """As DALI's iterator says which array is which output of its pipeline."""

    provide_data, provide_label = [mx.io.DataDesc("image", (8, 6))], [("digit", (8,)), ("size", (8, 1))]


class Lazy:
    """Offers an array, as a torch tensor or a JAX array does."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self) -> np.ndarray:
        return self.array


def nd(batch: Any) -> Any:
    return tuple(mx.nd.array(array) for array in batch)


def in_shards(batch: Any, first: int) -> Shards:
    """Split off the first samples if more than one is split off."""
    cuts = [first] if first > 1 else []
    return Shards(zip(*[np.split(array, cuts) for array in batch]))


def each(change: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a function that changes each batch, of image, digit and size."""
    return lambda batches: [change(*batch) for batch in batches]


def each_nd(change: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda batches: [change(*nd(batch)) for batch in batches]


def dataset() -> Any:
    return gluon.data.ArrayDataset(*two_head_arrays().values())


def array_iterator(names: str = "abc", **options: Any) -> Any:
    image, digit, size = zip(names, two_head_arrays().values())
    return mx.io.NDArrayIter(dict([image]), dict([digit, size]), **{"batch_size": 8, **options})


def by_slot(image: Any, digit: Any, size: Any) -> Any:
    """Return a list of one array per device for each slot, as gluoncv's batchify functions do."""
    return [np.array_split(array, 2) for array in (image, digit, size)]


Loader = gluon.data.DataLoader
pixels, named_batch = namedtuple("pixels", "x y z"), namedtuple("named_batch", "digit size image")
KINDS: dict[str, Callable[[Any], Any]] = {
    "DataLoader": lambda batches: Loader(dataset(), batch_size=8),
    "DataLoader, threads": lambda batches: Loader(dataset(), 8, num_workers=2, thread_pool=True),
    "DataLoader, processes": lambda batches: Loader(dataset(), 8, num_workers=2),
    "DataLoader without length": lambda batches: Loader(dataset(), batch_sampler=NoLength()),
    "NDArrayIter": lambda batches: array_iterator(),
    "DALI": Dali,
    "DataBatch": each_nd(lambda i, d, s: mx.io.DataBatch([i], [d, s])),
    "dicts in another order": each(lambda *batch: dict(list(zip(NAMES, batch))[::-1])),
    "[[data], [labels]]": each_nd(lambda i, d, s: [[i], [d, s]]),
    "shared memory": each_nd(lambda *batch: tuple(array.as_in_context(SHARED) for array in batch)),
    "mx.np": each(lambda *batch: tuple(mx.np.array(array) for array in batch)),
    "CSR": each(lambda i, d, s: (mx.nd.array(i).tostype("csr"), d, s)),
    "CSR labels": each(lambda i, d, s: (i, d, mx.nd.array(s).tostype("csr"))),
    "row-sparse": each(lambda i, d, s: (mx.nd.array(i).tostype("row_sparse"), d, s)),
    "SciPy": each(lambda i, d, s: (scipy.sparse.coo_matrix(i, dtype="float64"), d, s)),
    "pandas": each(lambda i, d, s: (i, pd.Series(d), pd.DataFrame(s))),
    "other dtypes": each(lambda i, d, s: (Lazy(i), d.astype("int64"), s.astype("float64"))),
    "unequal shards": each(lambda *batch: in_shards(batch, 3)),
    "shards": each(lambda *batch: in_shards(batch, 1)),
    "batches": lambda batches: multifit.batches(*two_head_arrays().values(), batch_size=8),
    "batches by name": lambda batches: multifit.batches(two_head_arrays(), batch_size=8),
    "frames": lambda batches: multifit.batches(
        *[pd.DataFrame(array.astype("float64")) for array in two_head_arrays().values()], batch_size=8
    ),
}
BACKWARDS = {"batch": ["size", "digit", "image"]}
# with a spec that names their arrays in another order, or takes them apart
DESCRIBED: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "NDArrayIter": (lambda batches: array_iterator(NAMES), BACKWARDS),
    "prefetched": (lambda batches: mx.io.PrefetchingIter(array_iterator(NAMES)), BACKWARDS),
    "resized": (lambda batches: mx.io.ResizeIter(array_iterator(NAMES), 3, reset_internal=True), BACKWARDS),
    "DALI": (lambda batches: NamedDali(batches, devices=2), BACKWARDS),
    "DataBatch": (each_nd(lambda i, d, s: mx.io.DataBatch(
            [i], [s, d], provide_data=[("image",)], provide_label=[("size",), ("digit",)])), BACKWARDS),
    "namedtuple": (each_nd(lambda i, d, s: named_batch(d, s, i)), BACKWARDS),
    "namedtuple with names of its own": (each(lambda i, d, s: pixels(s, d, i)), BACKWARDS),
    "an unused slot": (each(lambda i, d, s: (s, np.arange(len(d)), d, i)),
        {"batch": ["size", "index", "digit", "image"], "unused": ["index"]}),
    "batch_fn": (each(lambda *batch: SimpleNamespace(**dict(zip(NAMES, batch)))), {"batch_fn": vars}),
    "shards by slot": (each(by_slot), {"batch_fn": lambda batch: Shards(zip(*batch))}),
    "shards by device": (each(lambda *batch: list(zip(*by_slot(*batch)))), {"batch_fn": Shards}),
}  # fmt: skip


def trained(data: Any, devices: int = 1, kind: str = "plain", **changes: Any) -> dict[str, list[float]]:
    """Return the figures of a training that starts from the same parameters each time."""
    mx.random.seed(0)
    trainer = TrainerSpec(".*", "sgd", {"learning_rate": 0.1})
    contexts = [mx.cpu(i) for i in range(devices)]
    estimator = MultiEstimator(two_heads(kind), two_head_spec(**changes), trainer, context=contexts)
    history = estimator.fit(data, data, epochs=2)
    assert estimator.state.samples == 40
    return dict(history)


@cache
def reference() -> dict[str, list[float]]:
    """Return the figures of a training with tuples of NumPy arrays."""
    return trained(in_batches(two_head_arrays().values()))


def assert_as_reference(figures: dict[str, list[float]]) -> None:
    assert list(figures) == list(reference())
    for name, values in reference().items():
        np.testing.assert_allclose(figures[name], values, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(("kind", "devices"), [(kind, 1 + i % 2) for i, kind in enumerate(KINDS)])
def test_all_kinds_of_data_train_equally(kind: str, devices: int, batches: Any) -> None:
    assert_as_reference(trained(KINDS[kind](batches), devices, "hybridized"))


@pytest.mark.parametrize("kind", DESCRIBED)
def test_a_spec_can_describe_batches_of_another_form(kind: str, batches: Any) -> None:
    make, changes = DESCRIBED[kind]
    assert_as_reference(trained(make(batches), 1 + ("shards" in kind), **changes))


def test_inputs_of_an_iterator_are_matched_by_their_names() -> None:
    images = two_head_arrays()["image"]
    data = mx.io.NDArrayIter({"low": images, "high": images + 1}, batch_size=8)
    net = hybridized(gluon.nn.HybridLambda(lambda F, high, low: high - low), True)
    spec = TaskSpec(outputs="y", labels=["t"], losses={"y": LossSpec(L2, "y", "t")}, inputs=["high", "low"])
    assert (MultiEstimator(net, spec).predict(data)["y"] > 0.9).all()


def test_training_and_validation_may_share_an_iterator(arrays: Any) -> None:
    data = array_iterator(shuffle=True)
    seen: list[Any] = []

    class Watch:
        def batch_end(self, estimator: Any, label: Any) -> None:
            seen.extend(label["size"][0].asnumpy().ravel().tolist())

    MultiEstimator(two_heads(), two_head_spec()).fit(data, data, epochs=1, event_handlers=Watch())
    assert sorted(seen) == sorted(arrays["size"].ravel().tolist())


def test_the_padding_of_a_data_batch_is_ignored(batches: Any) -> None:
    net = two_heads()
    padded = array_iterator(batch_size=16)
    estimator = MultiEstimator(net, two_head_spec())
    estimator.fit(padded, epochs=1)
    assert net.calls == [(16, 6), (16, 6), (4, 6)]  # first the check
    assert estimator.evaluate(padded) == pytest.approx(estimator.evaluate(batches), rel=1e-5)


class Optional(gluon.HybridBlock):
    """Takes two inputs, of which it may use the second."""

    def __init__(self, uses: bool) -> None:
        super().__init__()
        self.uses, self.head = uses, gluon.nn.Dense(1, in_units=6)

    def hybrid_forward(self, F: Any, data: Any, mask: Any = None) -> Any:
        return self.head(F.broadcast_mul(data, mask) if self.uses and mask is not None else data)


@two_settings
@pytest.mark.parametrize("uses", [True, False], ids=["none", "unused"])
def test_an_input_may_be_none_or_unused(devices: list, hybrid: bool, uses: bool, arrays: Any) -> None:
    spec = TaskSpec(inputs=["data", "mask"], outputs=["y"], labels=["y"], losses={"y": L2})
    batch = {"data": arrays["image"], "mask": None if uses else arrays["image"], "y": arrays["size"]}
    estimator = MultiEstimator(hybridized(Optional(uses), hybrid), spec, context=devices)
    history = estimator.fit([batch] * 2, [batch], epochs=2)
    assert history["train_loss"][1] < history["train_loss"][0]
    assert estimator.predict(batch)["y"].shape == (20, 1)


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
