"""An exported net returns what `predict` does, under the spec's names, in Gluon and in onnxruntime."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from multifit import LossSpec, MultiEstimator, SpecError, TaskSpec
from multifit.cli import build_parser
from multifit.cli.run import Run
from multifit.gluon.export.export import export
from multifit.spec.names import leaves

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip

TASKS = Path(__file__).parents[3] / "tasks"
TWO = [mx.cpu(0), mx.cpu(1)]


class Hybrid(nn.HybridBlock):
    """A net of a function and the layers that it uses."""

    def __init__(self, function, **layers):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def hybrid_forward(self, F, *inputs):
        return self.function(self, F, *inputs)


class Plain(gluon.Block):
    """A Block of a function of one layer."""

    def __init__(self, function):
        super().__init__()
        self.function, self.layer = function, nn.Dense(3)

    def forward(self, *inputs):
        return self.function(self.layer, *inputs)


def body():
    """Return layers that compute something else in training."""
    layers = nn.HybridSequential()
    layers.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Dropout(0.5), nn.Dense(5))
    return layers


def spec(inputs, outputs, **options):
    """Return a spec without losses and metrics."""
    named = [name for _, name in leaves(outputs)]
    return TaskSpec(inputs=inputs, outputs=outputs, unused=list(dict.fromkeys([*inputs, *named])), **options)


def fitting(**options):
    """Return a spec with a loss."""
    loss = LossSpec(gluon.loss.L2Loss(), "out", "y")
    return TaskSpec(inputs=["x"], outputs=["out"], labels=["y"], losses={"l2": loss}, **options)


def noise(*shape):
    return np.random.randn(*shape).astype("float32")


def modes(net, F, x):
    """Return something else in training, as SSD does."""
    return net.a(x) if mx.autograd.is_training() else F.softmax(net.a(x))


def read(net, F, words):
    return net.a(net.r(net.e(words)))


def dense(prefix):
    return nn.Dense(4, prefix=prefix)


def twice(net, slots):
    """Call a net twice."""
    first, second = net(slots["left"]), net(slots["right"])
    return first, second, (first - second) ** 2


def symbol_block(tmp_path):
    net = nn.HybridSequential()
    net.add(nn.Dense(4, activation="tanh"), nn.Dense(2))
    net.initialize()
    net.hybridize()
    net(mx.nd.ones((2, 3)))
    net.export(str(tmp_path / "before"))
    return gluon.SymbolBlock.imports(
        str(tmp_path / "before-symbol.json"), ["data"], str(tmp_path / "before-0000.params")
    )


# net, spec, and a batch of 5
CASES = {
    "nested": lambda _: (
        Hybrid(lambda n, F, x: (n.a(x), [n.b(x), (n.b(x) * 2,)]), a=body(), b=body()),
        spec(["image"], ["a", ["b", ["c"]]]),
        noise(5, 3, 8, 8),
    ),
    "dict": lambda _: (
        Hybrid(lambda n, F, x: {"b": n.b(x), "a": n.a(x)}, a=nn.Dense(2), b=nn.Dense(3)),
        spec(["image"], ["a", "b"]),
        noise(5, 4),
    ),
    "rest ignored": lambda _: (
        Hybrid(lambda n, F, x: [n.a(x), n.b(x)], a=nn.Dense(2), b=nn.Dense(3)),
        TaskSpec(inputs=["x"], outputs=["a", ...], unused=["x", "a"]),
        noise(5, 4),
    ),
    "one symbol of several": lambda _: (
        Hybrid(lambda n, F, x: F.split(n.a(x), num_outputs=2), a=nn.Dense(4)),
        spec(["x"], ["l", "r"]),
        noise(5, 3),
    ),
    "only when evaluating": lambda _: (Hybrid(modes, a=nn.Dense(4)), spec(["x"], ["p"]), noise(5, 3)),
    "an input goes through": lambda _: (
        Hybrid(lambda n, F, x: (x, n.a(x)), a=nn.Dense(4)),
        spec(["x"], ["same", "other"]),
        noise(5, 3),
    ),
    "an input is not read": lambda _: (
        Hybrid(lambda n, F, x, y: n.a(x), a=nn.Dense(4)),
        spec(["x", "y"], ["out"]),
        (noise(5, 3), noise(5, 2)),
    ),
    "names of combined specs": lambda _: (
        Hybrid(lambda n, F, x: (n.a(x), x * 2), a=nn.Dense(4)),
        spec(["x"], ["detection/boxes", "two words"]),
        noise(5, 3),
    ),
    "names of nodes": lambda _: (
        Hybrid(lambda n, F, x: (n.a(F.identity(x, name="y")), F.relu(x, name="z")), a=dense("a_")),
        spec(["x"], ["a_fwd", "y"]),
        noise(5, 3),
    ),
    "forward": lambda _: (
        nn.Dense(4),
        spec(["left", "right"], ["l", "r", "d"], forward=twice),
        (noise(5, 3), noise(5, 3)),
    ),
    "SymbolBlock": lambda path: (symbol_block(path), spec(["point"], ["out"]), noise(5, 3)),
    "a Block of layers": lambda _: (Plain(lambda layer, x: layer(x)), spec(["x"], ["out"]), noise(5, 3)),
    "bytes": lambda _: (
        Hybrid(lambda n, F, x: n.a(F.cast(x, "float32") / 255), a=nn.Dense(3)),
        spec(["x"], ["out"]),
        np.random.randint(0, 255, (5, 4)).astype("uint8"),
    ),
    "words": lambda _: (
        Hybrid(read, e=nn.Embedding(9, 4), r=gluon.rnn.LSTM(3, layout="NTC"), a=nn.Dense(2)),
        spec(["words"], ["mood"]),
        np.random.randint(0, 9, (5, 6)).astype("int32"),
    ),
}  # fmt: skip


def arrays_of(data):
    return data if isinstance(data, tuple) else (data,)


def imported(folder, inputs):
    """Return the files as a Gluon program reads them: a function from arrays to a list of arrays."""
    block = gluon.SymbolBlock.imports(
        str(folder / "net-symbol.json"), inputs, str(folder / "net-0000.params")
    )

    def call(*arrays):
        result = block(*[mx.nd.array(array, dtype=array.dtype) for array in arrays])
        return [one.asnumpy() for one in (result if isinstance(result, list) else [result])]

    return call


def session(folder):
    return onnxruntime.InferenceSession(str(folder / "net.onnx"), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("case", CASES)
def test_both_formats_give_what_predict_returns(case, tmp_path):
    net, spec, data = CASES[case](tmp_path)
    estimator = MultiEstimator(net, spec)
    paths = export(estimator._engine, tmp_path / "out", data)
    assert [path.name for path in paths] == ["export.json", "net-0000.params", "net-symbol.json"]
    assert export(estimator._engine, tmp_path, data, "onnx") == [tmp_path / "net.onnx"]
    in_gluon, in_onnx = imported(tmp_path / "out", list(spec.inputs)), session(tmp_path)
    assert [(port.name, port.shape[0]) for port in in_onnx.get_inputs()] == [(n, "N") for n in spec.inputs]
    assert [port.name for port in in_onnx.get_outputs()] == list(spec.output_names)
    for size in (5, 2):
        part = tuple(array[:size] for array in arrays_of(data))
        expected = estimator.predict(part)
        pairs = zip(in_gluon(*part), in_onnx.run(None, dict(zip(spec.inputs, part))), expected.items())
        assert len(expected) == len(spec.output_names)
        for gluon_array, onnx_array, (name, value) in pairs:
            np.testing.assert_allclose(gluon_array, value, rtol=1e-5, atol=1e-6, err_msg=name)
            np.testing.assert_allclose(onnx_array, value, rtol=1e-4, atol=1e-5, err_msg=name)


def task_estimator(file, settings):
    """Return the estimator of a task file, without its data."""
    options = build_parser().parse_args(["check", str(TASKS / f"{file}.py"), "--set", "epochs=1", *settings])
    return Run(options).estimator


@pytest.mark.parametrize(
    ("file", "settings", "shape", "labels"),
    [
        ("digits", [], (8, 1, 8, 8), [(8,), (8, 1), (8, 1)]),
        ("classification", ["model=resnet18"], (4, 1, 32, 32), [(4,)]),
        ("segmentation", ["size=32"], (2, 3, 32, 32), [(2, 32, 32)]),
        ("segmentation", ["model=fcn", "size=32"], (2, 3, 32, 32), [(2, 32, 32)]),
    ],
    ids=["three heads", "resnet18", "FCN", "FCN of gluoncv"],
)
def test_nets_of_the_tasks_give_what_predict_returns(file, settings, shape, labels, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    estimator = task_estimator(file, settings)
    image = noise(*shape)
    estimator.fit([(image, *(np.random.randint(0, 2, size).astype("float32") for size in labels))], epochs=1)
    spec = estimator.spec.evaluation
    export(estimator._engine, tmp_path, image)
    export(estimator._engine, tmp_path, image, "onnx")
    found = imported(tmp_path, list(spec.inputs))(image)
    ran = session(tmp_path).run(list(spec.output_names), {spec.inputs[0]: image})
    for (name, value), one, other in zip(estimator.predict(image).items(), found, ran):
        np.testing.assert_allclose(one, value, rtol=1e-5, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(other, value, rtol=1e-4, atol=1e-4, err_msg=name)


def record(folder):
    return json.loads((folder / "export.json").read_text("utf-8"))


def test_the_record_describes_inputs_and_outputs(tmp_path):
    net, spec, data = CASES["an input is not read"](tmp_path)
    export(MultiEstimator(net, spec)._engine, tmp_path, data)
    found = record(tmp_path)
    assert found["inputs"] == [
        {"name": "x", "shape": ["N", 3], "dtype": "float32"},
        {"name": "y", "shape": ["N", 2], "dtype": "float32"},
    ]
    assert found["outputs"] == [
        {"name": "out", "shape": ["N", 4], "dtype": "float32", "symbol": "out_output"}
    ]
    assert found["unread_inputs"] == ["y"] and found["versions"]["mxnet"] == mx.__version__
    assert found["sha256"] == {
        name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        for name in (found["parameters"], found["symbol"])
    }
    assert mx.sym.load(str(tmp_path / found["symbol"])).list_outputs() == ["out_output"]


@pytest.mark.parametrize(
    ("function", "shape", "inputs", "outputs"),
    [
        (lambda n, F, x: F.reshape(x, shape=(-3, 0)), (5, 3, 2), ["N", 3, 2], [None, 2]),
        (lambda n, F, x: F.reshape(x, shape=(5, 3, 1)), (5, 3), [5, 3], [5, 3, 1]),
        (lambda n, F, x: x + F.ones((5, 3)), (5, 3), [5, 3], [5, 3]),
        (lambda n, F, x: F.contrib.boolean_mask(x, F.mean(x, axis=1)), (5, 3), ["N", 3], None),
    ],
    ids=["merged axes", "a fixed batch", "a fixed operand", "as many as there are"],
)  # fmt: skip
def test_sizes_are_recorded_as_far_as_they_are_known(function, shape, inputs, outputs, tmp_path):
    export(MultiEstimator(Hybrid(function), spec(["x"], ["out"]))._engine, tmp_path, noise(*shape))
    found = record(tmp_path)
    assert (found["inputs"][0]["shape"], found["outputs"][0]["shape"]) == (inputs, outputs)


def test_sizes_that_differ_between_batches_stay_open(tmp_path):
    net, spec, _ = CASES["words"](tmp_path)
    net.a = nn.Dense(2, flatten=False)
    estimator = MultiEstimator(net, spec)
    batches = [np.random.randint(0, 9, (size, length)).astype("int32") for size, length in ((5, 6), (4, 3))]
    export(estimator._engine, tmp_path, batches)
    export(estimator._engine, tmp_path, batches, "onnx")
    found = record(tmp_path)
    assert (found["inputs"][0]["shape"], found["outputs"][0]["shape"]) == (["N", None], ["N", None, 2])
    other = np.random.randint(0, 9, (3, 8)).astype("int32")
    ran = session(tmp_path).run(["mood"], {"words": other})
    for answer in (*imported(tmp_path, ["words"])(other), *ran):
        np.testing.assert_allclose(answer, estimator.predict(other)["mood"], rtol=1e-4, atol=1e-5)


def test_batches_with_other_axes_are_ignored(tmp_path):
    estimator = MultiEstimator(Hybrid(lambda n, F, x: x * 2), spec(["x"], ["out"]))
    for shape in ((5, 3, 2), (5, 3), (4, 7)):
        estimator.predict(noise(*shape))
    estimator.export(tmp_path)
    assert record(tmp_path)["inputs"][0]["shape"] == ["N", None]


def test_an_input_that_is_none_stays_none(tmp_path):
    net = Hybrid(lambda n, F, x, y: n.a(x) if y is None else n.a(x) + y, a=nn.Dense(4))
    estimator = MultiEstimator(net, spec(["x", "y"], ["out"]))
    data = {"x": noise(5, 3), "y": None}
    export(estimator._engine, tmp_path, data)
    assert [one["name"] for one in record(tmp_path)["inputs"]] == ["x"]
    np.testing.assert_allclose(
        imported(tmp_path, ["x"])(data["x"])[0], estimator.predict(data)["out"], rtol=1e-5
    )


def test_running_statistics_of_two_devices_are_averaged(tmp_path):
    net = Hybrid(lambda n, F, x: n.a(x), a=body())
    declared = fitting()
    estimator = MultiEstimator(net, declared, context=TWO)
    data = noise(8, 3, 8, 8), noise(8, 5)
    estimator.fit([data], epochs=1)
    export(estimator._engine, tmp_path, data[:1])
    net.save_parameters(str(tmp_path / "final.params"))
    again = Hybrid(net.function, a=body())
    again.load_parameters(str(tmp_path / "final.params"))
    expected = MultiEstimator(again, declared).predict(data[0])["out"]
    np.testing.assert_allclose(imported(tmp_path, ["x"])(data[0])[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("hybridized", [False, True])
def test_the_net_does_not_change(hybridized, tmp_path):
    net = Hybrid(lambda n, F, x: n.a(x), a=nn.Dense(4))
    if hybridized:
        net.hybridize()
    estimator = MultiEstimator(net, spec(["x"], ["out"]))
    data = noise(5, 3)
    before = estimator.predict(data)["out"]
    graph, op = net._cached_graph, net._cached_op
    export(estimator._engine, tmp_path, data)
    export(estimator._engine, tmp_path, data, "onnx")
    assert net._active == bool(graph) == hybridized
    assert net._cached_graph is graph and net._cached_op is op
    np.testing.assert_array_equal(estimator.predict(data)["out"], before)


def test_the_same_net_gives_the_same_file(tmp_path):
    net, spec, data = CASES["nested"](tmp_path)
    engine = MultiEstimator(net, spec)._engine
    first, second = (export(engine, tmp_path / folder, data, "onnx")[0].read_bytes() for folder in ("a", "b"))
    assert first == second


def test_the_evaluation_spec_is_exported(tmp_path):
    net = Hybrid(lambda n, F, x: n.a(x), a=nn.Dense(4))
    inner = spec(["points"], ["best"], forward=lambda net, slots: net(slots["points"]).max(axis=1))
    estimator = MultiEstimator(net, fitting(evaluate=inner))
    data = noise(5, 3)
    export(estimator._engine, tmp_path, [data])
    np.testing.assert_allclose(
        imported(tmp_path, ["points"])(data)[0], estimator.predict(data)["best"], rtol=1e-5
    )


# ---- through the estimator -----------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["fit", "check", "evaluate", "predict"])
def test_no_data_are_needed_after_a_run(run, tmp_path):
    net = Hybrid(lambda n, F, x: n.a(x), a=nn.Dense(2))
    declared = fitting()
    estimator = MultiEstimator(net, declared)
    data = noise(5, 3).astype("float64"), noise(5, 2)
    if run == "predict":
        estimator.predict(data[0])
    else:
        getattr(estimator, run)([data], **({"epochs": 1} if run == "fit" else {}))
    estimator.export(tmp_path)
    assert record(tmp_path)["inputs"] == [{"name": "x", "shape": ["N", 3], "dtype": "float32"}]
    estimator.export(tmp_path, format="onnx")
    np.testing.assert_allclose(
        session(tmp_path).run(["out"], {"x": noise(3, 3) * 0})[0],
        estimator.predict(noise(3, 3) * 0)["out"],
        atol=1e-6,
    )


def test_data_are_needed_before_a_run(tmp_path):
    estimator = MultiEstimator(nn.Dense(2), spec(["x"], ["out"]))
    with pytest.raises(
        ValueError, match=r'the shapes of the inputs "x" are not known; fit, check or evaluate'
    ):
        estimator.export(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert len(estimator.export(str(tmp_path / "out"), noise(5, 3))) == 3


# ---- errors --------------------------------------------------------------------------------------------


def test_an_unknown_format_is_an_error(tmp_path):
    with pytest.raises(
        ValueError, match=r"""format is 'onx' \(did you mean "onnx"\?\); valid is "gluon" or "onnx\""""
    ):
        MultiEstimator(nn.Dense(2), spec(["x"], ["out"])).export(tmp_path, noise(5, 3), "onx")


@pytest.mark.parametrize(
    ("net", "why"),
    [
        (
            Plain(lambda layer, x: mx.nd.relu(layer(x))),
            "AssertionError: Argument data must have NDArray type",
        ),
        (Plain(lambda layer, x: mx.nd.ones((5, 2))), 'the output "out" is NDArray, not a symbol'),
        (Hybrid(lambda n, F, x: x if x.shape[0] > 3 else 2 * x), "AttributeError: 'Symbol' object has no"),
        (Hybrid(lambda n, F, x: x + F.ones((1, 3))), "MXNetError: Error in operator"),
    ],
    ids=["arrays' operators", "arrays", "shapes", "broadcasting"],
)
def test_a_net_that_works_on_arrays_only_is_an_error(net, why, tmp_path):
    with pytest.raises(SpecError) as error:
        export(MultiEstimator(net, spec(["x"], ["out"]))._engine, tmp_path / "out", noise(5, 3))
    message = str(error.value)
    assert f"export: {type(net).__name__} cannot be made a graph" in message and why in message
    assert "make it a HybridBlock" in message and "\n" not in message.replace("found:\n", "")
    assert not (tmp_path / "out").exists()


def test_another_structure_for_symbols_is_an_error(tmp_path):
    net = Hybrid(lambda n, F, x: x if F is mx.nd else (x, x))
    with pytest.raises(SpecError, match="1 declared .*, the net that is exported returns 2 arrays"):
        export(MultiEstimator(net, spec(["x"], ["out"]))._engine, tmp_path, noise(5, 3))


def test_parameters_of_a_block_that_is_not_a_child_are_an_error(tmp_path):
    stranger = nn.Dense(2, prefix="stranger_")
    stranger.initialize()
    declared = spec(["x"], ["out"], forward=lambda net, slots: stranger(net(slots["x"])))
    with pytest.raises(
        ValueError, match='reads "stranger_bias", "stranger_weight", which the net does not hold'
    ):
        export(MultiEstimator(nn.Dense(3), declared)._engine, tmp_path, noise(5, 3))


def test_parameters_without_values_are_an_error(tmp_path):
    net = Hybrid(lambda n, F, x: n.a(x) if F is mx.nd else n.b(x), a=nn.Dense(2), b=nn.Dense(2, prefix="b_"))
    with pytest.raises(
        ValueError, match='parameters "b_weight" have no values yet; fit, check or evaluate first'
    ):
        export(MultiEstimator(net, spec(["x"], ["out"]))._engine, tmp_path, noise(5, 3))


def test_an_input_with_the_name_of_a_parameter_is_an_error(tmp_path):
    net = nn.Dense(2, prefix="dense_")
    with pytest.raises(ValueError, match='inputs "dense_weight" have the names of parameters; rename them'):
        export(MultiEstimator(net, spec(["dense_weight"], ["out"]))._engine, tmp_path, noise(5, 3))


def test_all_files_are_written_or_none(tmp_path, monkeypatch):
    engine = MultiEstimator(nn.Dense(2), spec(["x"], ["out"]))._engine
    export(engine, tmp_path, noise(5, 3))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    engine.model.net.weight.set_data(mx.nd.ones((2, 3)))

    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mx.nd, "save", full)
    with pytest.raises(OSError, match="No space left"):
        export(engine, tmp_path, noise(5, 3))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


# ---- ONNX ----------------------------------------------------------------------------------------------


def test_an_output_with_the_name_of_an_input_is_renamed_in_onnx(tmp_path):
    estimator = MultiEstimator(nn.Dense(3), spec(["image"], ["image"]))
    data = noise(5, 3)
    export(estimator._engine, tmp_path, data)
    assert record(tmp_path)["outputs"][0]["name"] == "image"
    export(estimator._engine, tmp_path, data, "onnx")
    found = session(tmp_path).run(["image_output"], {"image": data})[0]
    np.testing.assert_allclose(found, estimator.predict(data)["image"], atol=1e-6)


@pytest.mark.parametrize(
    ("function", "operator"),
    [
        (lambda n, F, x: F.contrib.boolean_mask(x, F.mean(x, axis=1)), '"_contrib_boolean_mask" (at "'),
        (lambda n, F, x: F.contrib.box_nms(x, overlap_thresh=0.5), '"_contrib_box_nms" (at "'),
        (lambda n, F, x: F.dot(F.expand_dims(x, 0), F.ones((6, 2)), name="far"), '"dot" (at "'),
    ],
    ids=["not there", "another suppression", "another product"],
)
def test_an_operator_without_a_correct_converter_is_an_error(function, operator, tmp_path):
    estimator = MultiEstimator(Hybrid(function), spec(["x"], ["out"]))
    with pytest.raises(ValueError) as error:
        export(estimator._engine, tmp_path / "out", noise(5, 6), "onnx")
    assert f"has no correct converter for {operator}" in str(error.value)
    assert 'export with format="gluon"' in str(error.value) and not (tmp_path / "out").exists()


def test_a_product_of_matrices_is_converted(tmp_path):
    estimator = MultiEstimator(Hybrid(lambda n, F, x: F.dot(x, F.ones((6, 2)))), spec(["x"], ["out"]))
    data, handlers = noise(5, 6), list(logging.getLogger().handlers)
    export(estimator._engine, tmp_path, data, "onnx")
    assert logging.getLogger().handlers == handlers  # mxnet's warning has not set up logging
    np.testing.assert_allclose(
        session(tmp_path).run(None, {"x": data})[0], estimator.predict(data)["out"], atol=1e-5
    )


def test_an_error_of_the_converter_is_passed_on(tmp_path):
    estimator = MultiEstimator(nn.Conv1D(2, 3), spec(["x"], ["out"]))
    with pytest.raises(
        ValueError, match="ONNX: mxnet's converter failed .NotImplementedError: Convolution currently"
    ):
        export(estimator._engine, tmp_path / "out", noise(4, 5, 6), "onnx")
    assert not (tmp_path / "out").exists()
    assert onnx.checker.DEFAULT_CONTEXT.opset_imports == {"": onnx.defs.onnx_opset_version()}


def test_missing_onnx_names_the_extra(tmp_path, monkeypatch):
    engine = MultiEstimator(nn.Dense(2), spec(["x"], ["out"]))._engine
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r'needs onnx, .*: pip install "multifit\[onnx\]"'):
        export(engine, tmp_path, noise(5, 3), "onnx")
    assert len(export(engine, tmp_path, noise(5, 3))) == 3


def test_an_onnx_that_is_too_new_is_an_error(tmp_path, monkeypatch):
    engine = MultiEstimator(nn.Dense(2), spec(["x"], ["out"]))._engine
    monkeypatch.setitem(sys.modules, "onnx.mapping", None)
    with pytest.raises(ImportError, match=r"cannot use onnx 1\.\d+\.\d+: its converter needs onnx.mapping"):
        export(engine, tmp_path, noise(5, 3), "onnx")
