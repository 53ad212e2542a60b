"""predict() with activations, and into files."""

import os
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from multifit import DataError, LossSpec, MultiEstimator, SpecError, TaskSpec
from multifit.losses import SegmentationCELoss, SequenceCELoss
from tests.common.data import in_batches
from tests.common.nets import two_heads
from tests.common.specs import two_head_spec

CE = gluon.loss.SoftmaxCrossEntropyLoss


class Same(gluon.HybridBlock):
    """Returns its input."""

    def hybrid_forward(self, F: Any, data: Any) -> Any:
        return data * 1


def same(loss: Any = None, **changes: Any) -> MultiEstimator:
    labels = ["y", "length"] if isinstance(loss, SequenceCELoss) else ["y"]
    losses = {} if loss is None else {"losses": {"l": LossSpec(loss, "x", labels)}, "labels": labels}
    return MultiEstimator(Same(), TaskSpec(**{"outputs": ["x"], **losses, **changes}))


def softmax(array: np.ndarray, axis: int) -> np.ndarray:
    return np.asarray(mx.nd.softmax(mx.nd.array(array), axis=axis).asnumpy())


@pytest.fixture
def estimator(batches: Any) -> MultiEstimator:
    made = MultiEstimator(two_heads(), two_head_spec())
    made.fit(batches, epochs=1)
    return made


# ---- activations -------------------------------------------------------------------------------------------


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
    data = np.random.RandomState(0).randn(*shape).astype("float32") * 100
    outputs = same(loss).predict(in_batches([data]), activation="softmax")["x"]
    assert outputs.dtype == "float32"
    np.testing.assert_allclose(outputs, softmax(data, axis), rtol=1e-5, atol=1e-30)
    np.testing.assert_allclose(outputs.sum(axis), 1, rtol=1e-5)


def test_the_loss_of_training_counts_where_evaluation_has_none() -> None:
    spec = {"evaluate": TaskSpec(outputs=["x"])}
    data = np.random.RandomState(0).randn(2, 3, 4).astype("float32")
    outputs = same(CE(axis=1), **spec).predict(data, activation="softmax")["x"]
    np.testing.assert_allclose(outputs, softmax(data, 1), rtol=1e-5)


def test_the_sigmoid_does_not_overflow() -> None:
    data = np.array([[-1e4, -3.0, 0.0, 3.0, 1e4]], "float32")
    with np.errstate(all="raise"):
        outputs = same().predict(data, activation="sigmoid")["x"]
    np.testing.assert_allclose(outputs, [[0, 0.04742587, 0.5, 0.95257413, 1]], rtol=1e-5)


@pytest.mark.parametrize("devices", [1, 2])
def test_each_output_has_its_own(batches: Any, devices: int) -> None:
    made = MultiEstimator(two_heads(), two_head_spec(), context=[mx.cpu(i) for i in range(devices)])
    plain = made.predict(batches)
    shown = made.predict(batches, activation={"digit": "softmax", "size": lambda size: size[:, 0] * 2})
    np.testing.assert_allclose(shown["digit"], softmax(plain["digit"], 1), rtol=1e-5)
    np.testing.assert_allclose(shown["size"], plain["size"][:, 0] * 2, rtol=1e-6)
    half = made.predict(batches, activation={"digit": "softmax", "size": None})
    np.testing.assert_allclose(half["size"], plain["size"], rtol=1e-6)


@pytest.mark.parametrize(
    ("activation", "message"),
    [
        ("softmax", r"activation is 'softmax' for 2 outputs; give activation=\{'digit': 'softmax'\}"),
        (
            {"digits": "softmax", "size": "sigmod"},
            r'(?s)2 problems.*no output \'digits\' \(did you mean "digit"\?\); outputs are "digit", "size".*'
            r'output "size" is \'sigmod\' \(did you mean "sigmoid"\?\); valid is "softmax", "sigmoid" or a',
        ),
        ({"digit": 3}, r'output "digit" is 3; valid is'),
        (
            {"size": "softmax"},
            r'output "size": a softmax along axis -1 of \(8, 1\) is 1 everywhere or impossible',
        ),
    ],
)
def test_activations_that_do_not_fit(
    estimator: MultiEstimator, batches: Any, activation: Any, message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        estimator.predict(batches, activation=activation)


def test_an_error_in_a_function_says_where() -> None:
    def wrong(array: np.ndarray) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        same().predict(np.ones((2, 3), "float32"), activation=wrong)
    assert caught.value.__notes__[0] == 'raised in activation of output "x"'


# ---- into files --------------------------------------------------------------------------------------------


def test_outputs_are_written_batch_by_batch(estimator: MultiEstimator, batches: Any, tmp_path: Path) -> None:
    expected = estimator.predict(batches, activation={"digit": "softmax"})
    seen = []

    def loader() -> Any:
        for batch in batches:
            seen.append(sum(path.stat().st_size for path in tmp_path.glob(".*/*.npy")))
            yield batch

    folder = tmp_path / "outputs"
    outputs = estimator.predict(loader(), activation={"digit": "softmax"}, output=folder)
    assert list(outputs) == ["digit", "size"] and sorted(os.listdir(tmp_path)) == ["outputs"]
    for name, array in expected.items():
        assert isinstance(outputs[name], np.memmap) and outputs[name].dtype == array.dtype
        np.testing.assert_array_equal(outputs[name], array)
        np.testing.assert_array_equal(np.load(folder / f"{name}.npy", allow_pickle=False), array)
        with pytest.raises(ValueError, match="read-only"):
            outputs[name][0] = 1
    assert seen[0] == 0


def test_nothing_is_kept_in_memory(tmp_path: Path) -> None:
    """Of 40 batches, no more are alive at any time than of 4."""
    import gc
    import weakref

    alive: list[Any] = []
    most = 0

    def keep(array: np.ndarray) -> np.ndarray:
        nonlocal most
        gc.collect()
        result = array + 1
        alive.append(weakref.ref(result))
        most = max(most, sum(each() is not None for each in alive))
        return result

    batches = [np.full((4, 1000), i, "float32") for i in range(40)]
    outputs = same().predict(batches, activation=keep, output=tmp_path / "many")["x"]
    assert most <= 2 and outputs.shape == (160, 1000)
    np.testing.assert_array_equal(outputs[:, 0], np.repeat(np.arange(40), 4) + 1)


def test_several_devices_and_names_with_a_folder(tmp_path: Path) -> None:
    made = MultiEstimator(Same(), TaskSpec(outputs=["detection/boxes"]), context=[mx.cpu(0), mx.cpu(1)])
    data = np.arange(30, dtype="float32").reshape(10, 3)
    (tmp_path / "empty").mkdir()
    outputs = made.predict([data[:4], data[4:]], output=str(tmp_path / "empty"))
    np.testing.assert_array_equal(outputs["detection/boxes"], data)
    assert os.listdir(tmp_path / "empty") == ["detection.boxes.npy"]


class Anchored(gluon.Block):
    def forward(self, data: Any) -> Any:
        return data, mx.nd.arange(5).reshape((1, 5))


@pytest.mark.parametrize(
    ("net", "outputs", "data", "message"),
    [
        (
            Same(), ["x"], [np.ones((3, 2), "float32"), np.ones((3, 5), "float32")],
            r'output "x" is \(2,\) float32 for a sample, and \(5,\) float32 in a later batch; without output',
        ),
        (Anchored(), ["x", "a"], np.ones((8, 2), "float32"), r'"a" has the shape \(1, 5\) for 8 samples'),
    ],
)  # fmt: skip
def test_outputs_that_no_array_holds_are_refused(
    tmp_path: Path, net: Any, outputs: Any, data: Any, message: str
) -> None:
    made = MultiEstimator(net, TaskSpec(outputs=outputs))
    with pytest.raises(DataError, match=message):
        made.predict(data, output=tmp_path / "outputs")
    assert os.listdir(tmp_path) == []


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    made, data = same(), np.ones((4, 3), "float32")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "x.npy").write_text("mine")
    with pytest.raises(ValueError, match=r"output=.*used' is not empty: remove it, or give another folder"):
        made.predict(data, output=tmp_path / "used")
    for path in ("x.npy", "x.npy/new"):
        with pytest.raises(ValueError, match=r"output=.*x.npy is a file; give a folder"):
            made.predict(data, output=tmp_path / "used" / path)
    with pytest.raises(ValueError, match="predict: output is 7; valid is a path or None"):
        made.predict(data, output=7)
    with pytest.raises(TypeError, match=r'predict has no argument "ouput" \(did you mean "output"\?\)'):
        made.predict(data, ouput=tmp_path / "new")
    with pytest.raises(TypeError, match=r'check has no argument "layer" \(did you mean "layers"\?\)'):
        made.check(data, layer=True)
    with pytest.raises(DataError, match='output "x" is an array of objects, not of numbers; without output='):
        made.predict(data, activation=lambda array: array.astype(object), output=tmp_path / "new")
    with pytest.raises(ValueError, match="output= writes in one process, with samples along the first axis"):
        made.predict(data, batch_axis=1, output=tmp_path / "new")
    assert os.listdir(tmp_path) == ["used"] and (tmp_path / "used" / "x.npy").read_text() == "mine"
