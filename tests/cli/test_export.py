"""``multifit export`` writes what was trained for others to read."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import mxnet as mx  # isort: skip

POINTS = np.random.RandomState(7).randn(4, 3).astype("float32")
FOLDER = Path("runs/small/export")


@pytest.fixture
def export(trained, multifit):
    return lambda *options: multifit("export", trained, "--from", "runs/small", *options)


def assert_are_of_the_run(outputs):
    """Check the outputs of the two heads, computed from the parameters of the run."""
    values = mx.nd.load("runs/small/final.params")
    for output, head in zip(outputs, ("kind", "place"), strict=True):
        expected = POINTS @ values[f"{head}.weight"].asnumpy().T + values[f"{head}.bias"].asnumpy()
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


def test_gluon_is_the_default(export):
    result = export()
    names = ["export.json", "net-0000.params", "net-symbol.json"]
    assert (result.code, result.err) == (0, "")
    assert result.out.endswith(f"wrote {FOLDER}: {', '.join(names)}\n")
    assert sorted(path.name for path in FOLDER.iterdir()) == names
    files = [str(FOLDER / name) for name in names]
    block = mx.gluon.SymbolBlock.imports(files[2], ["point"], files[1])
    assert_are_of_the_run([output.asnumpy() for output in block(mx.nd.array(POINTS))])
    record = json.loads((FOLDER / "export.json").read_text("utf-8"))
    shapes = [(one["name"], one["shape"]) for one in record["outputs"]]
    assert shapes == [("kind", ["N", 2]), ("place", ["N", 1])]


def test_onnx_goes_to_the_output_folder(export):
    result = export("--format", "onnx", "--output", "there", "--quiet")
    assert (result.code, result.out) == (0, "wrote there: net.onnx\n")
    session = onnxruntime.InferenceSession("there/net.onnx", providers=["CPUExecutionProvider"])
    assert_are_of_the_run(session.run(["kind", "place"], {"point": POINTS}))


def test_without_validation_data_it_uses_the_training_data(export, write):
    write("both = data\ndef data(seed): return both(seed)[0]\n")
    assert export("--quiet").code == 0
