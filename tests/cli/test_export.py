"""``multifit export`` writes what was trained for others to read."""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import mxnet as mx  # isort: skip

POINTS = np.random.RandomState(7).randn(4, 3).astype("float32")


@pytest.fixture
def export(trained, multifit):
    return lambda *options: multifit("export", trained, "--from", "runs/small", *options)


def expected():
    """Return the outputs of the two heads, computed from the parameters of the run."""
    values = mx.nd.load("runs/small/final.params")
    heads = ("kind", "place")
    return [
        POINTS @ values[f"{head}.weight"].asnumpy().T + values[f"{head}.bias"].asnumpy() for head in heads
    ]


def test_gluon_is_the_default(export):
    result = export()
    names = ["export.json", "net-0000.params", "net-symbol.json"]
    assert (result.code, result.err) == (0, "")
    assert result.out.endswith(f"wrote runs/small/export: {', '.join(names)}\n")
    folder = Path("runs/small/export")
    assert sorted(path.name for path in folder.iterdir()) == names
    block = mx.gluon.SymbolBlock.imports(
        str(folder / "net-symbol.json"), ["point"], str(folder / "net-0000.params")
    )
    for output, reference in zip(block(mx.nd.array(POINTS)), expected()):
        np.testing.assert_allclose(output.asnumpy(), reference, rtol=1e-5, atol=1e-6)
    record = json.loads((folder / "export.json").read_text("utf-8"))
    assert [(one["name"], one["shape"]) for one in record["outputs"]] == [
        ("kind", ["N", 2]),
        ("place", ["N", 1]),
    ]


def test_onnx_goes_to_the_output_folder(export):
    result = export("--format", "onnx", "--output", "there", "--quiet")
    assert (result.code, result.out) == (0, "wrote there: net.onnx\n")
    session = onnxruntime.InferenceSession("there/net.onnx", providers=["CPUExecutionProvider"])
    for output, reference in zip(session.run(["kind", "place"], {"point": POINTS}), expected()):
        np.testing.assert_allclose(output, reference, rtol=1e-4, atol=1e-5)


def test_without_validation_data_it_uses_the_training_data(export, write):
    write("both = data\ndef data(seed): return both(seed)[0]\n")
    assert export("--quiet").code == 0


def test_without_onnx_the_extra_is_named(export, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    result = export("--format", "onnx")
    assert result.code == 2 and 'pip install "onnx<1.19"' in result.err


def test_a_net_that_cannot_be_traced_is_an_error(export, write):
    write(**{"self.place(point)\n": "self.place(point) * (len(point.shape) - 1)\n"})
    result = export()
    assert result.code == 1 and "export: TwoHeads cannot be made a graph" in result.err
