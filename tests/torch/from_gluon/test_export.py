"""An exported module needs torch alone, and returns what `predict` does."""

import errno
import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

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
ROWS = X[:, :, 0, 0]
OUTPUTS = ["scores", "split", "last"]  # one has the name of a function
FORMATS = pytest.mark.parametrize("format", ["torch", "pt2"])


def two_outputs(net: Any, F: Any, x: Any) -> Any:
    features = net.body(x)
    return features, F.broadcast_maximum(features, F.zeros_like(features)), F.split(features, 5, axis=1)[4]


def infinite(net: Any, F: Any, x: Any) -> Any:
    return F.clip(net.body(x), 0, float("inf")), F.maximum(x, -float("inf"))


class WithParameter(mx.gluon.HybridBlock):
    """Returns the largest values, which a function computes that calls another, and a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = self.params.get("scale", shape=(2,), init="ones")

    def hybrid_forward(self, F: Any, image: Any, scale: Any) -> Any:
        return F.max(image, axis=1), scale


def estimator_of(
    net: Any, inputs: Any = ("image",), outputs: Any = ("out",), **options: Any
) -> MultiEstimator:
    net.initialize()
    return MultiEstimator(net, spec(list(inputs), list(outputs)), **options)


def of(function: Any, inputs: Any = ("image",), outputs: Any = ("out",), **layers: Any) -> MultiEstimator:
    return estimator_of(Hybrid(function, **layers), inputs, outputs)


def convolutions() -> MultiEstimator:
    layers = nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Dropout(0.5), nn.Dense(5)
    return of(two_outputs, outputs=OUTPUTS, body=sequential(*layers))


def suppressed() -> MultiEstimator:
    return of(lambda net, F, x: F.contrib.box_nms(x))


NAMES = ("type", "type_", "train", "graph", "code", "children", "class", "class_", "None")
BOXES = np.random.RandomState(0).rand(2, 4, 6).astype("float32")
CASES: dict[str, tuple[Callable[[], MultiEstimator], list[np.ndarray]]] = {
    "layers": (convolutions, [X]),
    "an operator that waits": (suppressed, [BOXES]),
    "parts named as attributes of modules and keywords": (
        lambda: of(
            lambda net, F, x: [getattr(net, name)(x) for name in NAMES],
            outputs=NAMES, **{name: nn.Dense(2, in_units=3) for name in NAMES},
        ),
        [ROWS],
    ),
    "inputs that are no arguments": (
        lambda: of(lambda net, F, x, y, z: x + 2 * y - z, ("a.b", "a_b", "class")), [ROWS, ROWS + 1, ROWS * 2]
    ),
    **{
        f"the input {name}": (
            lambda name=name: of(infinite, [name], ["clipped", "same"], body=sequential(nn.Dense(5))), [ROWS]
        )
        for name in ("torch", "_ops", "inf", "max")
    },
    **{
        f"the output {name}": (lambda name=name: of(lambda net, F, x: x + 1, outputs=[name]), [X])
        for name in ("\\", r"\N", "{x}", "it's", 'a\\"""b')
    },
}  # fmt: skip


def load(folder: Path) -> torch.nn.Module:
    """Import the exported file and return its net with parameters."""
    return runpy.run_path(str(folder / "net.py"))["load"]()


@pytest.mark.parametrize("name", CASES)
def test_a_module_returns_what_predict_does(name: str, tmp_path: Path) -> None:
    make, arrays = CASES[name]
    estimator = make()
    expected = estimator.predict([tuple(arrays)])
    paths = estimator.export(tmp_path, [tuple(arrays)], format="torch")
    assert [path.name for path in paths] == ["export.json", "net.pt", "net.py"]
    net = load(tmp_path)
    for count in (len(arrays[0]), 2):
        found = net(*[torch.from_numpy(each[:count]) for each in arrays])
        assert list(found) == list(expected) and all(each in str(type(net).__doc__) for each in found)
        for output, values in found.items():
            np.testing.assert_allclose(values.detach(), expected[output][:count], rtol=1e-4, atol=1e-5)


def test_a_module_needs_torch_alone_has_the_nets_names_and_trains(tmp_path: Path) -> None:
    convolutions().export(tmp_path, [X], format="torch")
    code = "import sys; sys.modules.update(mxnet=None, multifit=None, numpy=None); import net, torch; "
    code += "print(sorted(net.load()(torch.ones(1, 3, 8, 8))))"
    command = [sys.executable, "-W", "ignore", "-c", code]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.stdout == "['last', 'scores', 'split']\n", result.stderr
    net, tensor = load(tmp_path), torch.from_numpy(X)
    assert {name for name, _ in net.named_parameters()} >= {"body.0.weight", "body.4.bias", "body.1.gamma"}
    assert {name for name, _ in net.named_buffers()} == {"body.1.running_mean", "body.1.running_var"}
    before = net.get_buffer("body.1.running_mean").clone()
    assert torch.equal(net(tensor)["scores"], net(tensor)["scores"])
    net.train()(tensor)["scores"].sum().backward()
    assert net.get_parameter("body.0.weight").grad.abs().sum() > 0
    assert not torch.equal(net.get_buffer("body.1.running_mean"), before)
    record = json.loads((tmp_path / "export.json").read_text())
    assert record["inputs"] == [{"name": "image", "shape": ["N", 3, 8, 8], "dtype": "float32"}]
    assert set(record["sha256"]) == {"net.py", "net.pt"}


@pytest.mark.parametrize("samples", [1, 5])
def test_a_program_takes_batches_of_any_size(samples: int, tmp_path: Path) -> None:
    estimator = convolutions()
    expected = estimator.predict([X])
    (path,) = estimator.export(tmp_path, [X[:samples]], format="pt2")
    program = torch.export.load(path).module()
    for count in (5, 3, 1):
        found = program(torch.from_numpy(X[:count]))
        for name, output in zip(OUTPUTS, found):
            np.testing.assert_allclose(output.detach(), expected[name][:count], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("samples", "fixed"), [(5, 5), (1, 2)])
def test_a_program_that_takes_batches_of_one_size_says_so(
    samples: int, fixed: int, tmp_path: Path, caplog: Any
) -> None:
    estimator = of(lambda net, F, x: F.slice(x, begin=(None,), end=(None,), step=(-1,)))
    with caplog.at_level("WARNING", logger="multifit"):
        estimator.export(tmp_path, [X[:samples]], format="pt2")
    assert f'takes batches of these sizes only: "image" ({fixed}, 3, 8, 8)' in caplog.text


@FORMATS
def test_a_parameter_may_be_an_output(format: str, tmp_path: Path) -> None:
    for engine in ("mxnet", "torch"):
        net = WithParameter()
        net.hybridize()
        estimator = estimator_of(net, outputs=["largest", "scale"], engine=engine)
        found = estimator.predict([ROWS])
        assert found["largest"].tolist() == ROWS.max(1).tolist() and set(np.ravel(found["scale"])) == {1.0}
    estimator.export(tmp_path, [ROWS], format=format)
    module = load(tmp_path) if format == "torch" else torch.export.load(tmp_path / "net.pt2").module()
    returned = module(torch.from_numpy(ROWS))
    largest, scale = returned.values() if format == "torch" else returned
    assert largest.tolist() == ROWS.max(1).tolist() and scale.tolist() == [1, 1]


@FORMATS
def test_what_has_no_translation_is_refused_and_nothing_is_written(format: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="the operator khatri_rao"):
        of(lambda net, F, x: F.khatri_rao(x, x)).export(tmp_path / "here", [X[0, 0]], format=format)
    assert not list(tmp_path.rglob("net*"))


def test_a_net_that_torch_export_does_not_take(tmp_path: Path) -> None:
    # torch's own words, without what it appends to them
    message = r'torch.export failed \(\w+: aten\.equal\.default\); format="torch" writes the net as a module'
    with pytest.raises(ValueError, match=message):
        suppressed().export(tmp_path, [BOXES], format="pt2")


@FORMATS
def test_a_full_disk_is_an_error_and_nothing_is_written(format: str, tmp_path: Path) -> None:
    estimator = of(lambda net, F, x: net.body(x), body=nn.Dense(1000))
    estimator.predict([X])
    with full_disk(100_000), pytest.raises(OSError) as caught:
        estimator.export(tmp_path, [X], format=format)
    assert (caught.value.errno, Path(caught.value.filename).parent) == (errno.EFBIG, tmp_path)
    assert not list(tmp_path.iterdir())


def test_definitions_of_operators_have_different_names() -> None:
    """A module holds those of all its operators."""
    modules = {function.__module__ for function in OPERATORS.values() if "multifit" in function.__module__}
    names = [
        name
        for module in map(import_module, modules)
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__
    ]
    assert sorted(names) == sorted(set(names))
