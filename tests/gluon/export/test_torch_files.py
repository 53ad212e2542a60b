"""What PyTorch's exporter gets of a net, without PyTorch."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from multifit.gluon.export import export
from tests.common.nets import sequential

from .nets import Hybrid, X, estimator_of

from mxnet.gluon import nn  # isort: skip


@pytest.fixture
def written(monkeypatch):
    """Put a module in the place of multifit.torch.export.write; return what its functions are called with."""
    calls = []
    functions = {
        name: lambda net, folder, name=name: calls.append((name, net)) or [folder / name]
        for name in export.FUNCTIONS.values()
    }
    module = SimpleNamespace(PlainNet=SimpleNamespace, **functions)
    monkeypatch.setattr(export, "find_spec", lambda name: name)
    monkeypatch.setattr(export, "import_module", lambda name: module)
    return calls


@pytest.mark.parametrize("format", export.FUNCTIONS)
def test_a_net_is_plain_data(format, tmp_path, written):
    layers = sequential(nn.Dense(4, in_units=3), nn.BatchNorm(in_channels=4))
    estimator = estimator_of(Hybrid(lambda net, F, x: net.body(x), body=layers))
    layers.initialize()
    layers[0].bias.grad_req = "null"
    assert estimator.export(tmp_path, [X], format=format) == [tmp_path / export.FUNCTIONS[format]]
    ((function, net),) = written
    assert function == export.FUNCTIONS[format]
    own = {name: structural for structural, name in net.names.items()}
    assert set(own) == {f"body.{name}" for name in ("0.weight", "0.bias", *(f"1.{each}" for each in NORM))}
    np.testing.assert_array_equal(net.arrays[own["body.0.weight"]], layers[0].weight.data().asnumpy())
    assert sorted(net.names[name] for name in net.trained) == ["body.0.weight", "body.1.beta", "body.1.gamma"]
    assert (net.example, net.open_axes, net.outputs) == ({"x": ((5, 3), "float32")}, {"x": [0]}, ["out"])
    assert net.record["inputs"] == [{"name": "x", "shape": ["N", 3], "dtype": "float32"}]


NORM = ("gamma", "beta", "running_mean", "running_var")


def test_without_torch_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="pip install torch"):
        estimator_of(nn.Dense(2)).export(tmp_path, [X], format="torch")
