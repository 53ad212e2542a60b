"""An exported net returns what `predict` does, in Gluon and in onnxruntime; or is refused, without a file."""

import hashlib
import json
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from multifit import LossSpec, MultiEstimator, SpecError, TaskSpec
from multifit.cli import build_parser
from multifit.cli.task import Choices, Task
from tests.common.nets import hybridized, sequential

from .nets import Hybrid, Plain, X, estimator_of, spec

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip

TASKS = Path(__file__).parents[3] / "tasks"


def fitting(net: Any, context: Any = None, **options: Any) -> MultiEstimator:
    """Return an estimator with a loss."""
    losses = {"l2": LossSpec(gluon.loss.L2Loss(), "out", "y")}
    declared = TaskSpec(outputs=["out"], labels=["y"], losses=losses, inputs=["x"], **options)
    return MultiEstimator(net, declared, context=context)


def body() -> Any:
    """Return layers that compute something else in training."""
    return sequential(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Dropout(0.5), nn.Dense(5))


def one_layer() -> Hybrid:
    return Hybrid(lambda n, F, x: n.a(x), a=nn.Dense(4))


def reader(**options: Any) -> Hybrid:
    layers = {"e": nn.Embedding(9, 4), "r": gluon.rnn.LSTM(3, layout="NTC"), "a": nn.Dense(2, **options)}
    return Hybrid(lambda n, F, words: n.a(n.r(n.e(words))), **layers)


def noise(*shape: int) -> np.ndarray:
    return np.random.randn(*shape).astype("float32")


def words(*shape: int) -> np.ndarray:
    return np.random.randint(0, 9, shape).astype("int32")


def modes(net: Any, F: Any, x: Any) -> Any:
    """Return something else in training, as SSD does."""
    return net.a(x) if mx.autograd.is_training() else F.softmax(net.a(x))


def twice(net: Any, slots: Any) -> Any:
    """Call a net twice."""
    first, second = net(slots["left"]), net(slots["right"])
    return first, second, (first - second) ** 2


def symbol_block(folder: Path) -> Any:
    net = hybridized(sequential(nn.Dense(4, activation="tanh"), nn.Dense(2)))
    net.initialize()
    net(mx.nd.ones((2, 3)))
    net.export(str(folder / "before"))
    files = str(folder / "before-symbol.json"), ["data"], str(folder / "before-0000.params")
    return gluon.SymbolBlock.imports(*files)


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
        fitting(one_layer(), evaluate=spec(["points"], ["best"],
            forward=lambda net, slots: net(slots["points"]).max(axis=1))), X),
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


def test_the_net_of_a_task_gives_what_predict_returns(tmp_path: Path, monkeypatch: Any) -> None:
    """An FCN."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    settings = ["epochs=1", "size=32"]
    options = build_parser().parse_args(["check", str(TASKS / "segmentation.py"), "--set", *settings])
    estimator, image = Task(Choices(options)).estimator, noise(2, 3, 32, 32)
    estimator.fit([(image, np.random.randint(0, 2, (2, 32, 32)).astype("float32"))], epochs=1)
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
    """The net takes the dtypes to which inputs are cast."""
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


# ---- what is refused ---------------------------------------------------------------------------------------


def stranger() -> Any:
    """Return a forward function that uses a Block which is no child of the net."""
    block = nn.Dense(2, prefix="stranger_")
    block.initialize()
    return lambda net, slots: block(net(slots["x"]))


NO_GRAPH, NO_CONVERTER = "export: {} cannot be made a graph", "has no correct converter for "
# what is exported, in which format, and the error
REFUSED: dict[str, Any] = {
    "arrays' operators": (lambda: estimator_of(Plain(lambda layer, x: mx.nd.relu(layer(x)))), X, "gluon",
        SpecError, NO_GRAPH.format("Plain"), "AssertionError: Argument data must have NDArray type"),
    "arrays": (lambda: estimator_of(Plain(lambda layer, x: mx.nd.ones((5, 2)))), X, "gluon",
        SpecError, NO_GRAPH.format("Plain"), 'the output "out" is NDArray, not a symbol'),
    "another structure": (
        lambda: estimator_of(Hybrid(lambda n, F, x: x if F is mx.nd else (x, x))), X, "gluon", SpecError,
        "1 declared ", "the net that is exported returns 2 arrays"),
    "a stranger's parameters": (lambda: estimator_of(nn.Dense(3), forward=stranger()), X, "gluon",
        ValueError, 'reads "stranger_bias", "stranger_weight", which the net does not hold'),
    "parameters without values": (
        lambda: estimator_of(Hybrid(
            lambda n, F, x: n.a(x) if F is mx.nd else n.b(x), a=nn.Dense(2), b=nn.Dense(2, prefix="b_"))), X,
        "gluon", ValueError, 'parameters "b_weight" have no values yet; fit, check or evaluate first'),
    "a parameter's name": (lambda: estimator_of(nn.Dense(2, prefix="dense_"), ["dense_weight"]), X, "gluon",
        ValueError, 'inputs "dense_weight" have the names of parameters; rename them'),
    "an input named self": (lambda: estimator_of(nn.Dense(2), ["self"]), X, "gluon",
        ValueError, 'infer shapes of an input named "self"; rename the input in the TaskSpec'),
    "no data": (lambda: estimator_of(nn.Dense(2)), None, "gluon",
        ValueError, 'the shapes of the inputs "x" are not known; fit, check or evaluate'),
    "format": (lambda: estimator_of(nn.Dense(2)), X, "onx",
        ValueError, """'onx' (did you mean "onnx"?); valid is "gluon", "onnx", "torch", "pt2" or None"""),
    "no such operator": (
        lambda: estimator_of(Hybrid(lambda n, F, x: F.contrib.boolean_mask(x, F.mean(x, axis=1)))), X, "onnx",
        ValueError, NO_CONVERTER + '"_contrib_boolean_mask" (at "', 'export with format="gluon"'),
    "another suppression": (
        lambda: estimator_of(Hybrid(lambda n, F, x: F.contrib.box_nms(x, overlap_thresh=0.5))),
        np.ones((5, 6), "float32"), "onnx", ValueError, NO_CONVERTER + '"_contrib_box_nms" (at "'),
    "another product": (
        lambda: estimator_of(Hybrid(lambda n, F, x: F.dot(F.expand_dims(x, 0), F.ones((3, 2)), name="far"))),
        X, "onnx", ValueError, NO_CONVERTER + '"dot" (at "'),
    "the converter's error": (lambda: estimator_of(nn.Conv1D(2, 3)), np.ones((4, 5, 6), "float32"), "onnx",
        ValueError, "ONNX: mxnet's converter failed (NotImplementedError: Convolution currently"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_exported_is_an_error_and_leaves_no_file(case: str, tmp_path: Path) -> None:
    make, data, form, kind, *texts = REFUSED[case]
    estimator = make()
    with pytest.raises(kind) as error:
        estimator.export(tmp_path / "out", data, form)
    message = str(error.value)
    assert type(error.value) is kind and all(text in message for text in texts), message
    assert "\n" not in message.replace("found:\n", "")
    assert not (tmp_path / "out").exists()
    assert onnx.checker.DEFAULT_CONTEXT.opset_imports == {"": onnx.defs.onnx_opset_version()}


def test_all_files_are_written_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    estimator = estimator_of(nn.Dense(2))
    estimator.export(str(tmp_path), X)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    estimator.net.weight.set_data(mx.nd.ones((2, 3)))

    def full(path: Any, data: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mx.nd, "save", full)
    with pytest.raises(OSError, match="No space left"):
        estimator.export(tmp_path, X)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


TORCH = r'format="{}" needs PyTorch: pip install .*\[torch\]'


@pytest.mark.parametrize(
    ("module", "format", "text"),
    [
        ("onnx", "onnx", r'needs onnx, .*: pip install "onnx<1.19"'),
        ("onnx.mapping", "onnx", r"cannot use onnx 1\.\d+\.\d+: its converter needs onnx.mapping"),
        ("torch", "torch", TORCH.format("torch")), ("torch", "pt2", TORCH.format("pt2")),
    ],
)  # fmt: skip
def test_a_package_that_is_missing_or_too_new_is_an_error(
    module: str, format: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=text):
        estimator_of(nn.Dense(2)).export(tmp_path, X, format)
