"""predict(): one batch or many, joined or listed, with activations, and into files."""

import gc
import os
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from multifit import DataError, LossSpec, MultiEstimator, SpecError, TaskSpec
from multifit.losses import SegmentationCELoss, SequenceCELoss
from tests.common.compare import assert_unchanged, snapshot
from tests.common.data import in_batches
from tests.common.grids import plain_or_hybrid
from tests.common.nets import hybridized, two_heads
from tests.common.specs import two_head_spec


def anchored(data: Any) -> tuple[Any, ...]:
    """Return the data, anchors that are not of its samples, and one number."""
    return data * 1, mx.nd.arange(5).reshape((1, 5)), mx.nd.array([1.0]).sum()


def of(function: Callable[[Any], Any], *outputs: str, loss: Any = None, **options: Any) -> MultiEstimator:
    """Return an estimator whose net is a function; the loss, if there is one, is of the first output."""
    labels = ["y", "length"] if isinstance(loss, SequenceCELoss) else ["y"]
    losses = {} if loss is None else {"losses": {"l": LossSpec(loss, outputs[0], labels)}, "labels": labels}
    context, spec = options.pop("context", None), TaskSpec(outputs=outputs, **losses, **options)
    return MultiEstimator(gluon.nn.Lambda(function), spec, context=context)


def same(loss: Any = None, **options: Any) -> MultiEstimator:
    return of(lambda data: data * 1, "x", loss=loss, **options)


def two_headed(devices: int = 1) -> MultiEstimator:
    context = [mx.cpu(i) for i in range(devices)]
    return MultiEstimator(two_heads(), two_head_spec(), context=context)


def assert_close(outputs: dict[str, Any], net: Any, image: np.ndarray) -> None:
    for name, output in zip(("digit", "size"), net(mx.nd.array(image))):
        assert isinstance(outputs[name], np.ndarray)
        np.testing.assert_allclose(outputs[name], output.asnumpy(), rtol=1e-5, atol=1e-6, err_msg=name)


def data_batch(image: Any, *labels: Any, **options: Any) -> Any:
    return mx.io.DataBatch([mx.nd.array(image)], [mx.nd.array(each) for each in labels] or None, **options)


# one batch or many, with labels or without
FORMS: dict[str, Callable[..., Any]] = {
    "loader": lambda *arrays: gluon.data.DataLoader(gluon.data.ArrayDataset(*arrays), batch_size=8),
    "list of tuples": lambda *arrays: in_batches(arrays),
    "list of arrays": lambda image, *_: [batch[0] for batch in in_batches([image])],
    "iterator": lambda image, *_: mx.io.NDArrayIter({"a": image}, None, batch_size=8),
    "iterator with labels": lambda image, b, c: mx.io.NDArrayIter(
        {"a": image}, {"b": b, "c": c}, batch_size=8
    ),
    "generator": lambda *arrays: (batch for batch in in_batches(arrays)),
    "array": lambda image, *_: image,
    "float64": lambda image, *_: image.astype("float64"),
    "array of MXNet": lambda image, *_: mx.nd.array(image),
    "tuple of one": lambda image, *_: (image,),
    "tuple": lambda *arrays: arrays,
    "dict of one": lambda image, *_: {"image": image},
    "dict": lambda image, digit, size: {"image": image, "digit": digit, "size": size},
    "DataBatch": data_batch,
    "DataBatch without labels": lambda image, *_: data_batch(image),
}


@pytest.mark.parametrize(("form", "devices"), [(form, 1 + i % 2) for i, form in enumerate(FORMS)])
def test_all_forms_of_data_are_predicted(form: str, devices: int, arrays: Any) -> None:
    estimator = two_headed(devices)
    outputs = estimator.predict(FORMS[form](*arrays.values()))
    assert list(outputs) == ["digit", "size"]
    assert_close(outputs, estimator.net, arrays["image"])


def test_it_moves_nothing_and_drops_rows_that_fill_up_a_batch(arrays: Any, batches: Any) -> None:
    estimator = two_headed()
    estimator.fit(batches, epochs=1)
    before, figures = snapshot(estimator.net), estimator.figures()
    assert_close(estimator.predict(data_batch(arrays["image"], pad=3)), estimator.net, arrays["image"][:-3])
    assert estimator.figures() == figures
    assert_unchanged(estimator.net, before)


@plain_or_hybrid
def test_what_cannot_be_joined_is_a_list(hybrid: bool) -> None:
    net = hybridized(gluon.nn.HybridLambda(lambda F, data: (data * 2, F.sum(data, axis=1))), hybrid)
    batches = [np.ones((3, length), "float32") for length in (2, 5, 2)]
    outputs = MultiEstimator(net, TaskSpec(outputs=["twice", "sum"])).predict(batches)
    assert [piece.shape for piece in outputs["twice"]] == [(3, 2), (3, 5), (3, 2)]
    assert outputs["sum"].tolist() == [2] * 3 + [5] * 3 + [2] * 3
    outputs = of(anchored, "data", "anchors", "norm").predict(np.ones((8, 2)))
    assert outputs["data"].shape == (8, 2)
    assert [piece.shape for piece in outputs["anchors"]] == [(1, 5)] and isinstance(outputs["norm"], list)


def test_the_evaluating_form_is_used(arrays: Any) -> None:
    outputs = of(lambda image: image * (2 if mx.autograd.is_training() else 1), "x").predict(arrays["image"])
    np.testing.assert_array_equal(outputs["x"], arrays["image"])


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


# ---- activations -------------------------------------------------------------------------------------------


CE = gluon.loss.SoftmaxCrossEntropyLoss


def softmax(array: np.ndarray, axis: int) -> np.ndarray:
    return np.asarray(mx.nd.softmax(mx.nd.array(array), axis=axis).asnumpy())


@pytest.mark.parametrize(
    ("loss", "shape", "axis"),
    [
        (None, (4, 3), -1),
        (None, (4, 3, 5, 5), -1),
        (CE(), (4, 3), -1),
        (CE(axis=1), (4, 3, 5), 1),
        (CE(axis=1, sparse_label=False), (4, 3, 5), 1),
        (SegmentationCELoss(), (4, 3, 5, 5), 1),
        (SequenceCELoss(), (4, 3, 5), -1),
        (SequenceCELoss(axis=1), (4, 3, 5), 1),
        (gluon.loss.L2Loss(), (4, 3), -1),
    ],
)
def test_the_softmax_is_along_the_losses_class_axis(loss: Any, shape: Any, axis: int) -> None:
    """That of training counts where evaluation has none."""
    data = np.random.RandomState(0).randn(*shape).astype("float32") * 100
    for options in ({}, {"evaluate": TaskSpec(outputs=["x"])}):
        outputs = same(loss, **options).predict(in_batches([data]), activation="softmax")["x"]
        assert outputs.dtype == "float32"
        np.testing.assert_allclose(outputs, softmax(data, axis), rtol=1e-5, atol=1e-30)
        np.testing.assert_allclose(outputs.sum(axis), 1, rtol=1e-5)


def test_the_sigmoid_does_not_overflow() -> None:
    data = np.array([[-1e4, -3.0, 0.0, 3.0, 1e4]], "float32")
    with np.errstate(all="raise"):
        outputs = same().predict(data, activation="sigmoid")["x"]
    np.testing.assert_allclose(outputs, [[0, 0.04742587, 0.5, 0.95257413, 1]], rtol=1e-5)


@pytest.mark.parametrize("devices", [1, 2])
def test_each_output_has_its_own(batches: Any, devices: int) -> None:
    made = two_headed(devices)
    plain = made.predict(batches)
    shown = made.predict(batches, activation={"digit": "softmax", "size": lambda size: size[:, 0] * 2})
    np.testing.assert_allclose(shown["digit"], softmax(plain["digit"], 1), rtol=1e-5)
    np.testing.assert_allclose(shown["size"], plain["size"][:, 0] * 2, rtol=1e-6)
    half = made.predict(batches, activation={"digit": "softmax", "size": None})
    np.testing.assert_allclose(half["size"], plain["size"], rtol=1e-6)


NO_FIT: dict[str, tuple[Any, str]] = {
    "one for two": ("softmax", r"'softmax' for 2 outputs; give activation=\{'digit': 'softmax'\}"),
    "misspelt": ({"digits": "softmax", "size": "sigmod"},
        r'(?s)2 problems.*no output \'digits\' \(did you mean "digit"\?\); outputs are "digit", "size".*'
        r'output "size" is \'sigmod\' \(did you mean "sigmoid"\?\); valid is "softmax", "sigmoid" or a'),
    "a number": ({"digit": 3}, r'output "digit" is 3; valid is'),
    "of one class": ({"size": "softmax"},
        r'output "size": a softmax along axis -1 of \(8, 1\) is 1 everywhere or impossible'),
}  # fmt: skip


@pytest.mark.parametrize(("activation", "message"), NO_FIT.values(), ids=NO_FIT)
def test_activations_that_do_not_fit(batches: Any, activation: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        two_headed().predict(batches, activation=activation)


# ---- into files --------------------------------------------------------------------------------------------


def test_outputs_are_written(batches: Any, tmp_path: Path) -> None:
    estimator, folder = two_headed(), tmp_path / "outputs"
    expected = estimator.predict(batches, activation={"digit": "softmax"})
    outputs = estimator.predict(iter(batches), activation={"digit": "softmax"}, output=folder)
    assert list(outputs) == ["digit", "size"] and sorted(os.listdir(tmp_path)) == ["outputs"]
    for name, array in expected.items():
        assert isinstance(outputs[name], np.memmap) and outputs[name].dtype == array.dtype
        np.testing.assert_array_equal(outputs[name], array)
        np.testing.assert_array_equal(np.load(folder / f"{name}.npy", allow_pickle=False), array)
        with pytest.raises(ValueError, match="read-only"):
            outputs[name][0] = 1


def test_nothing_is_kept_in_memory(tmp_path: Path) -> None:
    """Of 40 batches, no more are alive at any time than of 4."""
    alive, counts = [], []

    def keep(array: np.ndarray) -> np.ndarray:
        gc.collect()
        result = array + 1
        alive.append(weakref.ref(result))
        counts.append(sum(each() is not None for each in alive))
        return result

    batches = [np.full((4, 1000), i, "float32") for i in range(40)]
    outputs = same().predict(batches, activation=keep, output=tmp_path / "many")["x"]
    assert max(counts) <= 2 and outputs.shape == (160, 1000)
    np.testing.assert_array_equal(outputs[:, 0], np.repeat(np.arange(40), 4) + 1)


def test_several_devices_and_names_with_a_folder(tmp_path: Path) -> None:
    made = of(lambda data: data * 1, "detection/boxes", context=[mx.cpu(0), mx.cpu(1)])
    data = np.arange(30, dtype="float32").reshape(10, 3)
    (tmp_path / "empty").mkdir()
    outputs = made.predict([data[:4], data[4:]], output=str(tmp_path / "empty"))
    np.testing.assert_array_equal(outputs["detection/boxes"], data)
    assert os.listdir(tmp_path / "empty") == ["detection.boxes.npy"]


def as_objects(array: np.ndarray) -> np.ndarray:
    return array.astype(object)


X = np.ones((4, 3), "float32")
REFUSED: dict[str, tuple[Callable[[Path], Any], type, str]] = {
    "other shapes": (lambda folder: same().predict([X, X[:, :2]], output=folder / "new"), DataError,
        r'output "x" is \(3,\) float32 for a sample, and \(2,\) float32 in a later batch; without output'),
    "no sample's": (lambda folder: of(anchored, "x", "a", "n").predict(X, output=folder / "new"), DataError,
        r'"a" has the shape \(1, 5\) for 4 samples'),
    "objects": (lambda folder: same().predict(X, activation=as_objects, output=folder / "new"), DataError,
        'output "x" is an array of objects, not of numbers; without output='),
    "a full folder": (lambda folder: same().predict(X, output=folder / "used"), ValueError,
        r"output=.*used' is not empty: remove it, or give another folder"),
    "a file": (lambda folder: same().predict(X, output=folder / "used/x.npy"), ValueError,
        r"output=.*x.npy is a file; give a folder"),
    "in a file": (lambda folder: same().predict(X, output=folder / "used/x.npy/new"), ValueError,
        r"output=.*x.npy is a file; give a folder"),
    "no path": (lambda folder: same().predict(X, output=7), ValueError,
        "predict: output is 7; valid is a path or None"),
    "another axis": (lambda folder: same().predict(X, batch_axis=1, output=folder / "new"), ValueError,
        "output= writes in one process, with samples along the first axis"),
    "a slip": (lambda folder: same().predict(X, ouput=folder / "new"), TypeError,
        r'predict has no argument "ouput" \(did you mean "output"\?\)'),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_outputs_that_cannot_be_written_are_refused(case: str, tmp_path: Path) -> None:
    call, error, message = REFUSED[case]
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "x.npy").write_text("mine")
    with pytest.raises(error, match=message):
        call(tmp_path)
    assert os.listdir(tmp_path) == ["used"] and (tmp_path / "used" / "x.npy").read_text() == "mine"
