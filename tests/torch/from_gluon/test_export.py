"""An exported module needs torch alone, and returns what `predict` does."""

import errno
import json
import subprocess
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
import torch

from multifit import MultiEstimator, SpecError
from multifit.gluon.compat import mx
from multifit.torch.from_gluon.operators import OPERATORS
from tests.common.full_disk import full_disk
from tests.common.nets import sequential
from tests.gluon.export.nets import Hybrid, spec

nn = mx.gluon.nn
X = np.random.RandomState(0).randn(5, 3, 8, 8).astype("float32")


def body():
    return sequential(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Dropout(0.5), nn.Dense(5))


def two_outputs(net, F, x):
    features = net.body(x)
    return features, F.broadcast_maximum(features, F.zeros_like(features)), F.split(features, 5, axis=1)[4]


OUTPUTS = ["scores", "split", "last"]  # one has the name of a function


def estimator_of(function, inputs=("image",), outputs=OUTPUTS, **layers):
    estimator = MultiEstimator(Hybrid(function, **layers), spec(inputs, list(outputs)))
    estimator.net.initialize()
    return estimator


def load(folder):
    """Import the exported file and return its net with parameters."""
    description = spec_from_file_location("exported_net", folder / "net.py")
    module = module_from_spec(description)
    description.loader.exec_module(module)
    return module.load()


@pytest.fixture
def exported(tmp_path):
    estimator = estimator_of(two_outputs, body=body())
    expected = estimator.predict([X])
    paths = estimator.export(tmp_path, [X], format="torch")
    assert [path.name for path in paths] == ["export.json", "net.pt", "net.py"]
    return tmp_path, expected


def test_a_module_returns_what_predict_does(exported):
    folder, expected = exported
    net = load(folder)
    for count in (5, 2):
        found = net(torch.from_numpy(X[:count]))
        assert list(found) == OUTPUTS
        for name in OUTPUTS:
            np.testing.assert_allclose(found[name].detach(), expected[name][:count], rtol=1e-4, atol=1e-5)
    assert {name for name, _ in net.named_parameters()} >= {"body.0.weight", "body.4.bias", "body.1.gamma"}
    assert {name for name, _ in net.named_buffers()} == {"body.1.running_mean", "body.1.running_var"}
    record = json.loads((folder / "export.json").read_text())
    assert record["inputs"] == [{"name": "image", "shape": ["N", 3, 8, 8], "dtype": "float32"}]
    assert set(record["sha256"]) == {"net.py", "net.pt"}


def test_a_module_trains(exported):
    net = load(exported[0])
    before = net.get_buffer("body.1.running_mean").clone()
    evaluated = net(torch.from_numpy(X))["scores"]
    assert torch.equal(evaluated, net(torch.from_numpy(X))["scores"])
    net.train()
    net(torch.from_numpy(X))["scores"].sum().backward()
    assert net.get_parameter("body.0.weight").grad.abs().sum() > 0
    assert not torch.equal(net.get_buffer("body.1.running_mean"), before)


def test_a_module_needs_torch_alone(exported):
    code = "import sys; sys.modules.update(mxnet=None, multifit=None, numpy=None); import net, torch; "
    code += "print(sorted(net.load()(torch.ones(1, 3, 8, 8))))"
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=exported[0], capture_output=True, text=True
    )
    assert result.stdout == "['last', 'scores', 'split']\n", result.stderr


@pytest.mark.parametrize("samples", [1, 5])
def test_a_program_takes_batches_of_any_size(samples, tmp_path):
    estimator = estimator_of(two_outputs, body=body())
    expected = estimator.predict([X])
    (path,) = estimator.export(tmp_path, [X[:samples]], format="pt2")
    program = torch.export.load(path).module()
    for count in (5, 3, 1):
        found = program(torch.from_numpy(X[:count]))
        for name, output in zip(OUTPUTS, found):
            np.testing.assert_allclose(output.detach(), expected[name][:count], rtol=1e-4, atol=1e-5)


def suppressed(net, F, boxes):
    return F.contrib.box_nms(boxes)


@pytest.mark.parametrize("samples,fixed", [(5, 5), (1, 2)])
def test_a_program_that_takes_batches_of_one_size_says_so(samples, fixed, tmp_path, caplog):
    estimator = estimator_of(
        lambda net, F, x: F.slice(x, begin=(None,), end=(None,), step=(-1,)), outputs=["out"]
    )
    with caplog.at_level("WARNING", logger="multifit"):
        estimator.export(tmp_path, [X[:samples]], format="pt2")
    assert f'takes batches of these sizes only: "image" ({fixed}, 3, 8, 8)' in caplog.text


def test_parts_may_be_named_as_attributes_of_modules_and_keywords(tmp_path):
    names = ("type", "type_", "train", "graph", "code", "children", "class", "class_", "None")
    layers = {name: nn.Dense(2, in_units=3) for name in names}
    estimator = estimator_of(
        lambda net, F, x: [getattr(net, name)(x) for name in names], outputs=names, **layers
    )
    rows = X[:, :, 0, 0]
    expected = estimator.predict([rows])
    estimator.export(tmp_path, [rows], format="torch")
    net = load(tmp_path)
    assert {"type_.weight", "type__.weight"} <= set(net.state_dict())
    for name, values in net(torch.from_numpy(rows)).items():
        np.testing.assert_allclose(values.detach(), expected[name], rtol=1e-5)


class WithParameter(mx.gluon.HybridBlock):
    """Returns the largest values, which a function computes that calls another, and a parameter."""

    def __init__(self):
        super().__init__()
        self.scale = self.params.get("scale", shape=(2,), init="ones")

    def hybrid_forward(self, F, image, scale):
        return F.max(image, axis=1), scale


@pytest.mark.parametrize("format", ["torch", "pt2"])
def test_a_parameter_may_be_an_output(format, tmp_path):
    net, rows = WithParameter(), X[:, :, 0, 0]
    net.initialize()
    net.hybridize()
    for engine in ("mxnet", "torch"):
        estimator = MultiEstimator(net, spec(["image"], ["largest", "scale"]), engine=engine)
        found = estimator.predict([rows])
        assert found["largest"].tolist() == rows.max(1).tolist() and set(np.ravel(found["scale"])) == {1.0}
    estimator.export(tmp_path, [rows], format=format)
    tensor = torch.from_numpy(rows)
    if format == "torch":
        largest, scale = load(tmp_path)(tensor).values()
    else:
        largest, scale = torch.export.load(tmp_path / "net.pt2").module()(tensor)
    assert largest.tolist() == rows.max(1).tolist() and scale.tolist() == [1, 1]


def test_a_net_that_torch_export_does_not_take(tmp_path):
    rows = np.random.RandomState(0).rand(2, 4, 6).astype("float32")
    estimator = estimator_of(suppressed, outputs=["boxes"])
    # torch's own words, without what it appends to them
    message = r'torch.export failed \(\w+: aten\.equal\.default\); format="torch" writes the net as a module'
    with pytest.raises(ValueError, match=message):
        estimator.export(tmp_path, [rows], format="pt2")
    estimator.export(tmp_path, [rows], format="torch")
    found = load(tmp_path)(torch.from_numpy(rows))["boxes"]
    np.testing.assert_allclose(found, estimator.predict([rows])["boxes"], rtol=1e-6)


@pytest.mark.parametrize("format", ["torch", "pt2"])
def test_what_has_no_translation_is_refused_and_nothing_is_written(format, tmp_path):
    estimator = estimator_of(lambda net, F, x: F.khatri_rao(x, x), outputs=["product"])
    with pytest.raises(SpecError, match="the operator khatri_rao"):
        estimator.export(tmp_path / "here", [X[0, 0]], format=format)
    assert not list(tmp_path.rglob("net*"))


@pytest.mark.parametrize("format", ["torch", "pt2"])
def test_a_full_disk_is_an_error_and_nothing_is_written(format, tmp_path):
    estimator = estimator_of(lambda net, F, x: net.body(x), outputs=["out"], body=nn.Dense(1000))
    estimator.predict([X])
    with full_disk(100_000), pytest.raises(OSError) as caught:
        estimator.export(tmp_path, [X], format=format)
    assert (caught.value.errno, Path(caught.value.filename).parent) == (errno.EFBIG, tmp_path)
    assert not list(tmp_path.iterdir())


def infinite(net, F, x):
    return F.clip(net.body(x), 0, float("inf")), F.maximum(x, -float("inf"))


@pytest.mark.parametrize("name", ["torch", "_ops", "inf", "max"])
def test_inputs_may_be_named_as_what_the_code_uses(name, tmp_path):
    layers = sequential(nn.Dense(5), nn.Activation("relu"))
    estimator = estimator_of(infinite, [name], ["clipped", "same"], body=layers)
    rows = X[:, :, 0, 0]
    expected = estimator.predict([rows])
    estimator.export(tmp_path, [rows], format="torch")
    for key, values in load(tmp_path)(torch.from_numpy(rows)).items():
        np.testing.assert_allclose(values.detach(), expected[key], rtol=1e-5)


@pytest.mark.parametrize("name", ["\\", r"\N", "{x}", "it's", 'a\\"""b'])
def test_outputs_may_have_any_name(name, tmp_path):
    estimator = estimator_of(lambda net, F, x: x + 1, outputs=[name])
    estimator.export(tmp_path, [X], format="torch")
    net = load(tmp_path)
    assert list(net(torch.from_numpy(X))) == [name] and name in type(net).__doc__


def test_inputs_whose_names_are_no_arguments(tmp_path):
    inputs = ("a.b", "a_b", "class")
    estimator = estimator_of(lambda net, F, x, y, z: x + 2 * y - z, inputs, ["out"])
    estimator.export(tmp_path, [tuple(X[:, 0, 0] for _ in inputs)], format="torch")
    first, second, third = torch.rand(3, 5, 8)
    assert torch.allclose(
        load(tmp_path)(a_b=first, a_b_=second, class_=third)["out"], first + 2 * second - third
    )


def test_definitions_of_operators_have_different_names():
    """A module holds those of all its operators."""
    modules = {
        import_module(function.__module__)
        for function in OPERATORS.values()
        if "multifit" in function.__module__
    }
    names = [
        name
        for module in modules
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__
    ]
    assert sorted(names) == sorted(set(names))
