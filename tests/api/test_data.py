"""All kinds of loaders and batches, and all kinds of arrays in them."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
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
from tests.common.nets import hybridized, two_heads
from tests.common.specs import L2, two_head_spec

NAMES = ["image", "digit", "size"]


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


def nd(batch: Any) -> Any:
    return tuple(mx.nd.array(array) for array in batch)


def shared(batches: Any) -> list[Any]:
    context = mx.Context("cpu_shared", 0)
    return [tuple(array.as_in_context(context) for array in nd(batch)) for batch in batches]


def in_shards(batch: Any, first: int) -> Shards:
    """Split off the first samples if more than one is split off."""
    cuts = [first] if first > 1 else []
    return Shards(zip(*[np.split(array, cuts) for array in batch]))


def dataset() -> Any:
    return gluon.data.ArrayDataset(*two_head_arrays().values())


def array_iterator(**options: Any) -> Any:
    image, digit, size = two_head_arrays().values()
    return mx.io.NDArrayIter({"a": image}, {"b": digit, "c": size}, **{"batch_size": 8, **options})


Loader = gluon.data.DataLoader
KINDS: dict[str, Callable[[Any], Any]] = {
    "DataLoader": lambda batches: Loader(dataset(), batch_size=8),
    "DataLoader, threads": lambda batches: Loader(dataset(), 8, num_workers=2, thread_pool=True),
    "DataLoader, processes": lambda batches: Loader(dataset(), 8, num_workers=2),
    "DataLoader without length": lambda batches: Loader(dataset(), batch_sampler=NoLength()),
    "NDArrayIter": lambda batches: array_iterator(),
    "DALI": Dali,
    "DataBatch": lambda batches: [mx.io.DataBatch([i], [d, s]) for i, d, s in map(nd, batches)],
    "dicts in another order": lambda batches: [dict(list(zip(NAMES, batch))[::-1]) for batch in batches],
    "[[data], [labels]]": lambda batches: [[[i], [d, s]] for i, d, s in map(nd, batches)],
    "shared memory": shared,
    "mx.np": lambda batches: [tuple(mx.np.array(array) for array in batch) for batch in batches],
    "CSR": lambda batches: [(mx.nd.array(i).tostype("csr"), d, s) for i, d, s in batches],
    "CSR labels": lambda batches: [(i, d, mx.nd.array(s).tostype("csr")) for i, d, s in batches],
    "row-sparse": lambda batches: [(mx.nd.array(i).tostype("row_sparse"), d, s) for i, d, s in batches],
    "SciPy": lambda batches: [(scipy.sparse.coo_matrix(i, dtype="float64"), d, s) for i, d, s in batches],
    "unequal shards": lambda batches: [in_shards(batch, 3) for batch in batches],
    "shards": lambda batches: [in_shards(batch, 1) for batch in batches],
    "batches": lambda batches: multifit.batches(*two_head_arrays().values(), batch_size=8),
    "batches by name": lambda batches: multifit.batches(two_head_arrays(), batch_size=8),
    "frames": lambda batches: multifit.batches(
        *[pd.DataFrame(array.astype("float64")) for array in two_head_arrays().values()], batch_size=8
    ),
}


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


def named_iterator(**options: Any) -> Any:
    arrays = two_head_arrays()
    return mx.io.NDArrayIter({"image": arrays.pop("image")}, arrays, batch_size=8, **options)


class NamedDali(Dali):
    """As DALI's iterator says which array is which output of its pipeline."""

    provide_data, provide_label = [mx.io.DataDesc("image", (8, 6))], [("digit", (8,)), ("size", (8, 1))]


named_batch, pixels = namedtuple("named_batch", "digit size image"), namedtuple("pixels", "x y z")


NAMED: dict[str, Callable[[Any], Any]] = {
    "NDArrayIter": lambda batches: named_iterator(),
    "prefetched": lambda batches: mx.io.PrefetchingIter(named_iterator()),
    "resized": lambda batches: mx.io.ResizeIter(named_iterator(), 3, reset_internal=True),
    "DALI, two devices": lambda batches: NamedDali(batches, devices=2),
    "DataBatch": lambda batches: [
        mx.io.DataBatch([i], [s, d], provide_data=[("image",)], provide_label=[("size",), ("digit",)])
        for i, d, s in map(nd, batches)
    ],
    "namedtuple": lambda batches: [named_batch(d, s, i) for i, d, s in map(nd, batches)],
    "namedtuple with names of its own": lambda batches: [pixels(s, d, i) for i, d, s in batches],
}


@pytest.mark.parametrize("kind", NAMED)
def test_arrays_of_an_iterator_are_matched_by_their_names(kind: str, batches: Any) -> None:
    assert_as_reference(trained(NAMED[kind](batches), batch=["size", "digit", "image"]))


def test_inputs_of_an_iterator_are_matched_by_their_names() -> None:
    images = two_head_arrays()["image"]
    data = mx.io.NDArrayIter({"low": images, "high": images + 1}, batch_size=8)
    net = hybridized(gluon.nn.HybridLambda(lambda F, high, low: high - low), True)
    spec = TaskSpec(outputs="y", labels=["t"], losses={"y": LossSpec(L2, "y", "t")}, inputs=["high", "low"])
    assert (MultiEstimator(net, spec).predict(data)["y"] > 0.9).all()


def test_csv_files(tmp_path: Path, arrays: Any) -> None:
    np.savetxt(tmp_path / "x.csv", arrays["image"], delimiter=",")
    np.savetxt(tmp_path / "y.csv", np.column_stack([arrays["digit"], arrays["size"]]), delimiter=",")
    data = mx.io.CSVIter(
        data_csv=str(tmp_path / "x.csv"), data_shape=(6,),
        label_csv=str(tmp_path / "y.csv"), label_shape=(2,), batch_size=8, round_batch=False,
    )  # fmt: skip

    def split(batch: Any) -> dict[str, Any]:
        valid = 8 - batch.pad
        label = batch.label[0][:valid]
        return {"image": batch.data[0][:valid], "digit": label[:, 0], "size": label[:, 1:]}

    assert_as_reference(trained(data, batch_fn=split))


def test_batch_fn_may_return_shards(batches: Any) -> None:
    """Lists of one array per device for each slot, as gluoncv's batchify functions return."""
    by_slot = [[np.array_split(array, 2) for array in batch] for batch in batches]
    assert_as_reference(trained(by_slot, 2, batch_fn=lambda batch: Shards(zip(*batch))))
    by_device = [list(zip(*batch)) for batch in by_slot]
    assert_as_reference(trained(by_device, 2, batch_fn=Shards))
    estimator = MultiEstimator(two_heads(), two_head_spec(), context=[mx.cpu(0), mx.cpu(1)])
    whole = estimator.predict(batches[0])
    np.testing.assert_allclose(estimator.predict(Shards(by_device[0]))["digit"], whole["digit"], rtol=1e-5)


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
