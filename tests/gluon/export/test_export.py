"""An exported net returns what `predict` does, under the spec's names, in Gluon and in onnxruntime."""

import hashlib
import json
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from multifit import LossSpec, MultiEstimator, TaskSpec
from multifit.cli import build_parser
from multifit.cli.task import Choices, Task
from tests.common.nets import hybridized, sequential

from .nets import Hybrid, Plain, X, estimator_of, spec

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip

TASKS = Path(__file__).parents[3] / "tasks"


def body() -> Any:
    """Return layers that compute something else in training."""
    return sequential(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Dropout(0.5), nn.Dense(5))


def noise(*shape: int) -> np.ndarray:
    return np.random.randn(*shape).astype("float32")


def fitting(net: Any, context: Any = None, **options: Any) -> MultiEstimator:
    """Return an estimator with a loss."""
    losses = {"l2": LossSpec(gluon.loss.L2Loss(), "out", "y")}
    return MultiEstimator(
        net, TaskSpec(outputs=["out"], labels=["y"], losses=losses, inputs=["x"], **options), context=context
    )


def one_layer(**options: Any) -> Hybrid:
    return Hybrid(lambda n, F, x: n.a(x), a=nn.Dense(4, **options))


def modes(net: Any, F: Any, x: Any) -> Any:
    """Return something else in training, as SSD does."""
    return net.a(x) if mx.autograd.is_training() else F.softmax(net.a(x))


def twice(net: Any, slots: Any) -> Any:
    """Call a net twice."""
    first, second = net(slots["left"]), net(slots["right"])
    return first, second, (first - second) ** 2


def best(net: Any, slots: Any) -> Any:
    return net(slots["points"]).max(axis=1)


def words(*shape: int) -> np.ndarray:
    return np.random.randint(0, 9, shape).astype("int32")


def symbol_block(folder: Path) -> Any:
    net = hybridized(sequential(nn.Dense(4, activation="tanh"), nn.Dense(2)))
    net.initialize()
    net(mx.nd.ones((2, 3)))
    net.export(str(folder / "before"))
    files = str(folder / "before-symbol.json"), ["data"], str(folder / "before-0000.params")
    return gluon.SymbolBlock.imports(*files)


def reader(**options: Any) -> Hybrid:
    layers = {"e": nn.Embedding(9, 4), "r": gluon.rnn.LSTM(3, layout="NTC"), "a": nn.Dense(2, **options)}
    return Hybrid(lambda n, F, words: n.a(n.r(n.e(words))), **layers)


# an estimator, and a batch of 5
CASES: dict[str, Any] = {
    "nested": lambda _: (
        estimator_of(Hybrid(lambda n, F, x: (n.a(x), [n.b(x), (n.b(x) * 2,)]), a=body(), b=body()),
            ["image"], ["a", ["b", ["c"]]]), noise(5, 3, 8, 8)),
    "dict": lambda _: (
        estimator_of(Hybrid(lambda n, F, x: {"b": n.b(x), "a": n.a(x)}, a=nn.Dense(2), b=nn.Dense(3)),
            ["image"], ["a", "b"]), noise(5, 4)),
    "rest ignored": lambda _: (
        estimator_of(Hybrid(lambda n, F, x: [n.a(x), n.b(x)], a=nn.Dense(2), b=nn.Dense(3)),
            ["x"], ["a", ...]), X),
    "one symbol of several": lambda _: (
        estimator_of(Hybrid(lambda n, F, x: F.split(n.a(x), num_outputs=2), a=nn.Dense(4)),
            ["x"], ["l", "r"]), X),
    "only when evaluating": lambda _: (estimator_of(Hybrid(modes, a=nn.Dense(4))), X),
    "an input goes through": lambda _: (
        estimator_of(Hybrid(lambda n, F, x: (x, n.a(x)), a=nn.Dense(4)), ["x"], ["same", "other"]), X),
    "an input is not read": lambda _: (
        estimator_of(Hybrid(lambda n, F, x, y: n.a(x), a=nn.Dense(4)), ["x", "y"]), (X, noise(5, 2))),
    "names of combined specs": lambda _: (
        estimator_of(Hybrid(lambda n, F, x: (n.a(x), x * 2), a=nn.Dense(4)),
            ["x"], ["detection/boxes", "two words"]), X),
    "names of nodes": lambda _: (
        estimator_of(Hybrid(lambda n, F, x: (n.a(F.identity(x, name="y")), F.relu(x, name="z")),
            a=nn.Dense(4, prefix="a_")), ["x"], ["a_fwd", "y"]), X),
    "forward": lambda _: (
        estimator_of(nn.Dense(4), ["left", "right"], ["l", "r", "d"], forward=twice), (X, noise(5, 3))),
    "the spec for evaluation": lambda _: (
        fitting(one_layer(), evaluate=spec(["points"], ["best"], forward=best)), X),
    "SymbolBlock": lambda folder: (estimator_of(symbol_block(folder), ["point"]), X),
    "a Block of layers": lambda _: (estimator_of(Plain(lambda layer, x: layer(x))), X),
    "bytes": lambda _: (
        estimator_of(Hybrid(lambda n, F, x: n.a(F.cast(x, "float32") / 255), a=nn.Dense(3))),
        np.random.randint(0, 255, (5, 4)).astype("uint8")),
    "words": lambda _: (estimator_of(reader(), ["words"], ["mood"]), words(5, 6)),
    "a product of matrices": lambda _: (estimator_of(Hybrid(lambda n, F, x: F.dot(x, F.ones((3, 2))))), X),
    "an output named like an input": lambda _: (estimator_of(nn.Dense(3), ["image"], ["image"]), X),
}  # fmt: skip


def imported(folder: Path, inputs: Any, data: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    """Return what the files return in a Gluon program."""
    files = str(folder / "net-symbol.json"), list(inputs), str(folder / "net-0000.params")
    result = gluon.SymbolBlock.imports(*files)(*[mx.nd.array(array, dtype=array.dtype) for array in data])
    return [one.asnumpy() for one in (result if isinstance(result, list) else [result])]


def session(folder: Path) -> Any:
    return onnxruntime.InferenceSession(str(folder / "net.onnx"), providers=["CPUExecutionProvider"])


def record(folder: Path) -> Any:
    return json.loads((folder / "export.json").read_text("utf-8"))


def export_both(estimator: MultiEstimator, folder: Path, data: Any, others: Any = None) -> Any:
    """Export in both formats, and return the record.

    The files must give what `predict` returns for `others`, by default for `data`.
    """
    declared = estimator.spec.evaluation
    names = [path.name for path in estimator.export(folder, data)]
    assert names == ["export.json", "net-0000.params", "net-symbol.json"]
    assert estimator.export(folder, data, "onnx") == [folder / "net.onnx"]
    in_onnx = session(folder)
    assert [port.name for port in in_onnx.get_inputs()] == list(declared.inputs)
    outputs = [f"{n}_output" if n in declared.inputs else n for n in declared.output_names]
    assert [port.name for port in in_onnx.get_outputs()] == outputs
    for batch in [data] if others is None else others:
        arrays = batch if isinstance(batch, tuple) else (batch,)
        expected = estimator.predict(batch)
        in_gluon = imported(folder, declared.inputs, arrays)
        pairs = in_gluon, in_onnx.run(None, dict(zip(declared.inputs, arrays)))
        assert len(expected) == len(outputs)
        for gluon_array, onnx_array, (name, value) in zip(*pairs, expected.items()):
            np.testing.assert_allclose(gluon_array, value, rtol=1e-5, atol=1e-5, err_msg=name)
            np.testing.assert_allclose(onnx_array, value, rtol=1e-4, atol=1e-4, err_msg=name)
    return json.loads((folder / "export.json").read_text("utf-8"))


@pytest.mark.parametrize("case", CASES)
def test_both_formats_give_what_predict_returns(case: str, tmp_path: Path) -> None:
    estimator, data = CASES[case](tmp_path)
    handlers = list(logging.getLogger().handlers)
    arrays = data if isinstance(data, tuple) else (data,)
    described = export_both(estimator, tmp_path, data, [data, tuple(array[:2] for array in arrays)])
    declared = estimator.spec.evaluation
    assert [one["name"] for one in described["outputs"]] == list(declared.output_names)
    assert [port.shape[0] for port in session(tmp_path).get_inputs()] == ["N"] * len(arrays)
    assert logging.getLogger().handlers == handlers  # a warning of mxnet's would set up logging
    before = (tmp_path / "net.onnx").read_bytes()
    assert estimator.export(tmp_path / "again", data, "onnx")[0].read_bytes() == before


@pytest.mark.parametrize(
    ("file", "settings", "shape", "labels"),
    [
        ("digits", [], (8, 1, 8, 8), [(8,), (8, 1), (8, 1)]),
        ("classification", ["model=resnet18"], (4, 1, 32, 32), [(4,)]),
        ("segmentation", ["size=32"], (2, 3, 32, 32), [(2, 32, 32)]),
    ],
    ids=["three heads", "resnet18", "FCN"],
)
def test_nets_of_the_tasks_give_what_predict_returns(
    file: str, settings: list[str], shape: Any, labels: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    options = build_parser().parse_args(["check", str(TASKS / f"{file}.py"), "--set", "epochs=1", *settings])
    estimator, image = Task(Choices(options)).estimator, noise(*shape)
    estimator.fit([(image, *(np.random.randint(0, 2, size).astype("float32") for size in labels))], epochs=1)
    export_both(estimator, tmp_path, image)


def test_the_record_describes_inputs_and_outputs(tmp_path: Path) -> None:
    estimator, data = CASES["an input is not read"](tmp_path)
    estimator.export(tmp_path, data)
    found = record(tmp_path)
    ports = [{"name": n, "shape": ["N", s], "dtype": "float32"} for n, s in (("x", 3), ("y", 2), ("out", 4))]
    assert found["inputs"] == ports[:2] and found["outputs"] == [{**ports[2], "symbol": "out_output"}]
    assert found["unread_inputs"] == ["y"] and found["versions"]["mxnet"] == mx.__version__
    hashes = {n: hashlib.sha256((tmp_path / n).read_bytes()).hexdigest() for n in found["sha256"]}
    assert found["sha256"] == hashes and set(hashes) == {found["parameters"], found["symbol"]}
    assert mx.sym.load(str(tmp_path / found["symbol"])).list_outputs() == ["out_output"]


# fmt: off
SIZES: dict[str, tuple[Any, Any, Any, Any]] = {
    "merged axes": (lambda n, F, x: F.reshape(x, shape=(-3, 0)), [(5, 3, 2)], ["N", 3, 2], [None, 2]),
    "a fixed batch": (lambda n, F, x: F.reshape(x, shape=(5, 3, 1)), [(5, 3)], [5, 3], [5, 3, 1]),
    "a fixed operand": (lambda n, F, x: x + F.ones((5, 3)), [(5, 3)], [5, 3], [5, 3]),
    "as many as there are":
        (lambda n, F, x: F.contrib.boolean_mask(x, F.mean(x, axis=1)), [(5, 3)], ["N", 3], None),
    "other axes": (lambda n, F, x: x * 2, [(5, 3, 2), (5, 3), (4, 7)], ["N", None], ["N", None]),
}
# fmt: on


@pytest.mark.parametrize(("function", "shapes", "inputs", "outputs"), SIZES.values(), ids=SIZES)
def test_sizes_are_recorded_as_far_as_they_are_known(
    function: Any, shapes: Any, inputs: Any, outputs: Any, tmp_path: Path
) -> None:
    estimator = estimator_of(Hybrid(function))
    for shape in shapes:
        estimator.predict(noise(*shape))
    estimator.export(tmp_path)
    found = record(tmp_path)
    assert (found["inputs"][0]["shape"], found["outputs"][0]["shape"]) == (inputs, outputs)


def test_sizes_that_differ_between_batches_stay_open(tmp_path: Path) -> None:
    estimator = estimator_of(reader(flatten=False), ["words"], ["mood"])
    found = export_both(estimator, tmp_path, [words(5, 6), words(4, 3)], others=[words(3, 8)])
    assert (found["inputs"][0]["shape"], found["outputs"][0]["shape"]) == (["N", None], ["N", None, 2])


def test_an_input_that_is_none_stays_none(tmp_path: Path) -> None:
    net = Hybrid(lambda n, F, x, y: n.a(x) if y is None else n.a(x) + y, a=nn.Dense(4))
    estimator, data = estimator_of(net, ["x", "y"]), {"x": X, "y": None}
    estimator.export(tmp_path, data)
    assert [one["name"] for one in record(tmp_path)["inputs"]] == ["x"]
    found = imported(tmp_path, ["x"], (X,))[0]
    np.testing.assert_allclose(found, estimator.predict(data)["out"], rtol=1e-5)


def test_a_net_takes_the_dtypes_to_which_inputs_are_cast(tmp_path: Path) -> None:
    """The net itself would not take bytes."""
    data = np.random.randint(0, 9, (8, 3, 8, 8)).astype("uint8")
    estimator = fitting(Hybrid(lambda n, F, x: n.a(x), a=body()))
    estimator.export(tmp_path, data)
    assert record(tmp_path)["inputs"][0]["dtype"] == "float32"
    found = imported(tmp_path, ["x"], (data.astype("float32"),))[0]
    np.testing.assert_allclose(found, estimator.predict(data)["out"], rtol=1e-4, atol=1e-5)


def test_running_statistics_of_two_devices_are_averaged(tmp_path: Path) -> None:
    net = Hybrid(lambda n, F, x: n.a(x), a=body())
    data = noise(8, 3, 8, 8), noise(8, 5)
    estimator = fitting(net, [mx.cpu(0), mx.cpu(1)])
    estimator.fit([data], epochs=1)
    estimator.export(tmp_path, data[:1])
    net.save_parameters(str(tmp_path / "final.params"))
    again = Hybrid(net.function, a=body())
    again.load_parameters(str(tmp_path / "final.params"))
    expected = fitting(again).predict(data[0])["out"]
    np.testing.assert_allclose(imported(tmp_path, ["x"], data[:1])[0], expected, rtol=1e-5, atol=1e-6)


def test_the_net_does_not_change(tmp_path: Path) -> None:
    net = hybridized(one_layer())
    estimator = estimator_of(net)
    before = estimator.predict(X)["out"]
    graph, op = net._cached_graph, net._cached_op
    export_both(estimator, tmp_path, X)
    assert net._active and graph and net._cached_graph is graph and net._cached_op is op
    np.testing.assert_array_equal(estimator.predict(X)["out"], before)


@pytest.mark.parametrize("run", ["fit", "predict"])
def test_no_data_are_needed_after_a_run(run: str, tmp_path: Path) -> None:
    estimator, data = fitting(one_layer()), X.astype("float64")
    if run == "fit":
        estimator.fit([(data, noise(5, 4))], epochs=1)
    else:
        estimator.predict(data)
    for refused in (noise(5, 2), noise(5, 3, 2)):
        with pytest.raises(mx.MXNetError):
            estimator.predict(refused)
    found = export_both(estimator, tmp_path, None, others=[X])
    assert found["inputs"] == [{"name": "x", "shape": ["N", 3], "dtype": "float32"}]
