"""What cannot be exported is refused, without a file."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from multifit import SpecError
from multifit.gluon.export.traced_net import trace
from tests.common.nets import sequential

from .nets import Hybrid, Plain, X, estimator_of

import mxnet as mx  # isort: skip
from mxnet.gluon import nn  # isort: skip


def stranger() -> Any:
    """Return a forward function that uses a Block which is no child of the net."""
    block = nn.Dense(2, prefix="stranger_")
    block.initialize()
    return lambda net, slots: block(net(slots["x"]))


def by_symbol(net: Any, F: Any, x: Any) -> Any:
    return net.a(x) if F is mx.nd else net.b(x)


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
        lambda: estimator_of(Hybrid(by_symbol, a=nn.Dense(2), b=nn.Dense(2, prefix="b_"))), X, "gluon",
        ValueError, 'parameters "b_weight" have no values yet; fit, check or evaluate first'),
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


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("onnx", r'needs onnx, .*: pip install "onnx<1.19"'),
        ("onnx.mapping", r"cannot use onnx 1\.\d+\.\d+: its converter needs onnx.mapping"),
    ],
)
def test_an_onnx_that_is_missing_or_too_new_is_an_error(
    module: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimator = estimator_of(nn.Dense(2))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=text):
        estimator.export(tmp_path, X, "onnx")
    assert len(estimator.export(tmp_path, X)) == 3


def test_a_traced_net_names_its_parameters() -> None:
    layers = sequential(nn.Dense(4, in_units=3), nn.BatchNorm(in_channels=4))
    estimator = estimator_of(Hybrid(lambda net, F, x: net.body(x), body=layers))
    layers.initialize()
    layers[0].bias.grad_req = "null"
    net = trace(estimator.net, estimator.spec, next(estimator._engine.input_signatures([X])))
    names = {structural: name for name, structural in net.names.items()}
    assert set(names) == {f"body.{each}" for each in ("0.weight", "0.bias", *(f"1.{one}" for one in NORM))}
    weight = net.parameters[names["body.0.weight"]].asnumpy()
    np.testing.assert_array_equal(weight, layers[0].weight.data().asnumpy())
    assert sorted(net.names[name] for name in net.trained) == ["body.0.weight", "body.1.beta", "body.1.gamma"]


NORM = ("gamma", "beta", "running_mean", "running_var")


@pytest.mark.parametrize("format", ["torch", "pt2"])
def test_without_torch_the_extra_is_named(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=rf'format="{format}" needs PyTorch: pip install .*\[torch\]'):
        estimator_of(nn.Dense(2)).export("folder", [X], format=format)
