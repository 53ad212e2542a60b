"""All kinds of loaders and batches, and all kinds of arrays in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterator

import mxnet as mx
import numpy as np
import pandas
import pytest
from mxnet import gluon

from multifit import DataError, LabelSpec, LossSpec, MultiEstimator, TaskSpec, TrainerSpec


class Dali:
    """As DALI's iterator for MXNet: a list of DataBatches, one for each of its devices, and a reset()."""

    def __init__(self, batches: Any, devices: int = 1, pad: int = 0) -> None:
        self.batches, self.devices, self.pad, self.position = batches, devices, pad, 0

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


class Again:
    """A re-iterable that is not a sequence."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


class NoLength(gluon.data.Sampler):
    """A sampler of batches without length."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from (list(range(i, min(i + 8, 20))) for i in (0, 8, 16))

    def __len__(self) -> int:
        raise TypeError("unknown")


def nd(batch: Any) -> Any:
    return tuple(mx.nd.array(array) for array in batch)


def make_data(kind: str, arrays: Any, batches: Any) -> Any:
    set_ = gluon.data.ArrayDataset(*arrays.values())
    names, shared = list(arrays), mx.Context("cpu_shared", 0)
    image, digit, size = arrays.values()
    kinds = {
        "numpy tuples": lambda: batches,
        "NDArray lists": lambda: [list(nd(batch)) for batch in batches],
        "DataLoader": lambda: gluon.data.DataLoader(set_, batch_size=8),
        "DataLoader, threads": lambda: gluon.data.DataLoader(set_, 8, num_workers=2, thread_pool=True),
        "DataLoader, processes": lambda: gluon.data.DataLoader(set_, 8, num_workers=2),
        "DataLoader without length": lambda: gluon.data.DataLoader(set_, batch_sampler=NoLength()),
        "NDArrayIter": lambda: mx.io.NDArrayIter({"a": image}, {"b": digit, "c": size}, batch_size=8),
        "DALI": lambda: Dali(batches),
        "DALI, two devices": lambda: Dali(batches, devices=2),
        "DataBatch": lambda: [mx.io.DataBatch([i], [d, s]) for i, d, s in map(nd, batches)],
        "re-iterable": lambda: Again(batches),
        "dicts": lambda: [dict(zip(names, batch)) for batch in batches],
        "dicts in another order": lambda: [dict(reversed(list(zip(names, batch)))) for batch in batches],
        "(data, labels)": lambda: [(i, (d, s)) for i, d, s in batches],
        "[[data], [labels]]": lambda: [[[i], [d, s]] for i, d, s in map(nd, batches)],
        "shared memory": lambda: [tuple(a.as_in_context(shared) for a in nd(b)) for b in batches],
    }  # fmt: skip
    return kinds[kind]()


KINDS = [
    "NDArray lists", "DataLoader", "DataLoader, threads", "DataLoader, processes",
    "DataLoader without length", "NDArrayIter", "DALI", "DALI, two devices", "DataBatch", "re-iterable",
    "dicts", "dicts in another order", "(data, labels)", "[[data], [labels]]", "shared memory",
]  # fmt: skip


def trained(net: Any, spec: Any, data: Any, devices: int = 1) -> Any:
    mx.random.seed(0)
    trainer = TrainerSpec(".*", "sgd", {"learning_rate": 0.1})
    estimator = MultiEstimator(net, spec, trainer, context=[mx.cpu(i) for i in range(devices)])
    history = estimator.fit(data, data, epochs=2)
    assert estimator.state.samples == 40
    return history


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_of_data_train_equally(
    kind: str, devices: int, arrays: Any, batches: Any, make_net: Any, make_spec: Any
) -> None:
    expected = trained(make_net("hybridized"), make_spec(), batches)
    found = trained(make_net("hybridized"), make_spec(), make_data(kind, arrays, batches), devices)
    assert list(found) == list(expected)
    for figure, values in expected.items():
        np.testing.assert_allclose(found[figure], values, rtol=1e-4, atol=1e-6, err_msg=figure)


def test_csv_files(tmp_path: Path, arrays: Any, make_net: Any, make_spec: Any) -> None:
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

    history = trained(make_net(), make_spec(batch_fn=split), data)
    batches = [tuple(array[i : i + 8] for array in arrays.values()) for i in (0, 8, 16)]
    expected = trained(make_net(), make_spec(), batches)
    np.testing.assert_allclose(history["val_loss"], expected["val_loss"], rtol=1e-4)


def test_training_and_validation_may_share_an_iterator(arrays: Any, make_net: Any, make_spec: Any) -> None:
    image, digit, size = arrays.values()
    data = mx.io.NDArrayIter({"a": image}, {"b": digit, "c": size}, batch_size=8, shuffle=True)
    seen: list[Any] = []

    class Watch:
        def batch_end(self, estimator: Any, label: Any) -> None:
            seen.extend(label["size"][0].asnumpy().ravel().tolist())

    MultiEstimator(make_net(), make_spec()).fit(data, data, epochs=1, event_handlers=Watch())
    assert sorted(seen) == sorted(size.ravel().tolist())


def test_the_padding_of_a_data_batch_is_ignored(
    batches: Any, arrays: Any, make_net: Any, make_spec: Any
) -> None:
    net = make_net()
    padded = mx.io.NDArrayIter(arrays["image"], {"b": arrays["digit"], "c": arrays["size"]}, batch_size=16)
    estimator = MultiEstimator(net, make_spec())
    estimator.fit(padded, epochs=1)
    assert net.calls == [(16, 6), (4, 6)]
    assert estimator.evaluate(padded) == pytest.approx(estimator.evaluate(batches), rel=1e-5)


def test_float64_is_cast_and_logged_once(batches: Any, make_net: Any, make_spec: Any, log: Any) -> None:
    wide = [(i.astype("float64"), d, s.astype("float64")) for i, d, s in batches]
    estimator = MultiEstimator(make_net(), make_spec())
    history = estimator.fit(wide, wide, epochs=2)
    estimator.fit(wide, epochs=1)
    assert np.isfinite(history["val_loss"]).all()
    assert sorted(line for line in log() if "float64" in line) == [
        'the slot "image" is float64 and is cast to float32, batch by batch',
        'the slot "size" is float64 and is cast to float32, batch by batch',
    ]


def test_a_declared_dtype_is_used(batches: Any, make_net: Any, make_spec: Any, log: Any) -> None:
    seen = []

    def loss(size: Any, label: Any) -> Any:
        seen.append(np.dtype(label.dtype).name)
        return (size - label.astype("float32")) ** 2

    spec = make_spec(
        labels=["digit", LabelSpec("size", dtype="int32")],
        losses={"digit": gluon.loss.SoftmaxCrossEntropyLoss(), "size": LossSpec(loss, "size", "size")},
    )
    wide = [(i, d, s.astype("float64")) for i, d, s in batches]
    MultiEstimator(make_net(), spec).fit(wide, epochs=1)
    assert set(seen) == {"int32"}
    assert not [line for line in log() if "float64" in line]


class Lazy:
    """Offers an array, as a torch tensor or a JAX array does."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self) -> np.ndarray:
        return self.array


def test_array_likes(make_net: Any, make_spec: Any, arrays: Any) -> None:
    image, digit, size = arrays.values()
    estimator = MultiEstimator(make_net(), make_spec())
    expected = estimator.evaluate([(image, digit, size)])
    for batch in (
        (Lazy(image), digit.astype("int64"), size),
        (image, pandas.Series(digit), pandas.DataFrame(size)),
        (mx.nd.array(image, dtype="float64"), mx.nd.array(digit, dtype="uint8"), size.astype("float64")),
    ):
        assert estimator.evaluate([batch]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("slot", "value", "message"),
    [
        (0, 3, r'the slot "image" is \(\) int64, which has no batch axis 0'),
        (0, "text", "the slot \"image\" holds 'text', which is not an array"),
        (1, np.array(["a"] * 8), 'the slot "digit" is .* which a net cannot take'),
        (1, np.arange(5.0), "different numbers of samples"),
    ],
)
def test_invalid_arrays(
    slot: int, value: Any, message: str, batches: Any, make_net: Any, make_spec: Any
) -> None:
    batch = list(batches[0])
    batch[slot] = value
    with pytest.raises(DataError, match=message):
        MultiEstimator(make_net(), make_spec()).fit([batch], epochs=1)


class Optional(gluon.HybridBlock):
    def __init__(self) -> None:
        super().__init__()
        self.head = gluon.nn.Dense(1)

    def hybrid_forward(self, F: Any, data: Any, mask: Any = None) -> Any:
        return self.head(data if mask is None else F.broadcast_mul(data, mask))


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("devices", [1, 2])
def test_an_input_may_be_none(hybridize: bool, devices: int, arrays: Any) -> None:
    net = Optional()
    if hybridize:
        net.hybridize()
    spec = TaskSpec(inputs=["data", "mask"], outputs=["y"], labels=["y"], losses={"y": gluon.loss.L2Loss()})
    batch = {"data": arrays["image"], "mask": None, "y": arrays["size"]}
    estimator = MultiEstimator(net, spec, context=[mx.cpu(i) for i in range(devices)])
    history = estimator.fit([batch] * 2, [batch], epochs=2)
    assert history["train_loss"][1] < history["train_loss"][0]
    assert estimator.predict(batch)["y"].shape == (20, 1)


def test_a_batch_of_none(make_net: Any, make_spec: Any) -> None:
    with pytest.raises(DataError, match="no sample: None in every slot"):
        MultiEstimator(make_net(), make_spec()).fit([(None, None, None)], epochs=1)


def test_the_order_of_a_batch(arrays: Any, batches: Any, make_net: Any, make_spec: Any) -> None:
    expected = trained(make_net(), make_spec(), batches)
    spec = make_spec(batch=["size", "index", "digit", "image"], unused=["index"])
    turned = [(s, np.arange(len(d)), d, i) for i, d, s in batches]
    assert dict(trained(make_net(), spec, turned)) == dict(expected)


def test_unused_slots(batches: Any, make_net: Any, make_spec: Any) -> None:
    expected = trained(make_net(), make_spec(), batches)
    spec = make_spec(labels=["digit", "size", "name"], unused=["name"])
    named = [(*batch, np.arange(len(batch[1]))) for batch in batches]
    assert dict(trained(make_net(), spec, named)) == dict(expected)


def test_an_input_may_be_a_label(arrays: Any) -> None:
    class Half(gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.head = gluon.nn.Dense(6)

        def forward(self, image: Any, count: Any) -> Any:
            return self.head(image) * count.reshape((-1, 1))

    def restored(out: Any, image: Any, count: Any) -> Any:
        return ((out - image) ** 2).mean(axis=1) / count

    spec = TaskSpec(
        inputs=["image", "count"], outputs=["out"], labels=["image"],
        losses={"restored": LossSpec(restored, "out", ["image", "count"])},
    )  # fmt: skip
    assert spec.batch == ("image", "count")
    batch = (arrays["image"], np.full(20, 2.0, "float32"))
    estimator = MultiEstimator(Half(), spec)
    history = estimator.fit([batch] * 3, [batch], epochs=3)
    assert history["val_loss"][-1] < history["val_loss"][0]
    assert list(estimator.evaluate([batch])) == ["loss", "restored"]


def test_batch_fn_takes_any_batch(batches: Any, make_net: Any, make_spec: Any) -> None:
    class Record:
        def __init__(self, batch: Any) -> None:
            self.image, self.digit, self.size = batch

    expected = trained(make_net(), make_spec(), batches)
    spec = make_spec(
        batch_fn=lambda record: {"image": record.image, "digit": record.digit, "size": record.size}
    )
    assert dict(trained(make_net(), spec, [Record(batch) for batch in batches])) == dict(expected)


def test_batch_fn_may_derive_slots(arrays: Any) -> None:
    """A language model: the targets are the inputs, one step later."""
    net = gluon.nn.Dense(1, flatten=False)
    spec = TaskSpec(
        inputs=["now"], outputs=["next"], labels=["next"],
        batch_fn=lambda text: {"now": text[:, :-1].expand_dims(2), "next": text[:, 1:].expand_dims(2)},
        losses={"next": gluon.loss.L2Loss()},
    )  # fmt: skip
    history = MultiEstimator(net, spec).fit([mx.nd.array(arrays["image"])] * 2, epochs=2)
    assert np.isfinite(history["train_next"]).all()


def test_a_batch_fn_without_a_slot_is_an_error(batches: Any, make_net: Any, make_spec: Any) -> None:
    spec = make_spec(batch_fn=lambda batch: {"image": batch[0], "digits": batch[1], "size": batch[2]})
    with pytest.raises(DataError, match=r'no "digit" \(did you mean "digits"\?\)'):
        MultiEstimator(make_net(), spec).fit(batches, epochs=1)


@pytest.mark.parametrize(("number", "samples"), [(1, 1), (3, 2), (7, 5)])
def test_batches_of_any_size_on_two_devices(
    number: int, samples: int, arrays: Any, make_net: Any, make_spec: Any
) -> None:
    batches = [tuple(a[:samples] for a in arrays.values())] * number
    estimator = MultiEstimator(make_net(), make_spec(), context=[mx.cpu(0), mx.cpu(1)])
    estimator.fit(batches, epochs=1)
    assert estimator.state.samples == number * samples
    first, second = estimator.net.digit.weight.list_data()
    np.testing.assert_array_equal(first.asnumpy(), second.asnumpy())
