"""mxnet imports on every supported Python, and errors say why where it does not."""

import importlib
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy
import pytest

import multifit
from multifit.gluon import compat

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys, numpy, warnings
for name in "PZERO NZERO NINF PINF NAN NaN Inf alltrue sometrue product round_ in1d msort trapz".split():
    if name in vars(numpy):
        delattr(numpy, name)
import multifit
print("mxnet" in sys.modules, hasattr(multifit, "__wrapped__"))
import mxnet
print(multifit.TaskSpec.__name__, [name for name in multifit.__all__ if not hasattr(multifit, name)])
from multifit.gluon.compat import mx
import gluoncv, gluonnlp
import torch
anchors = gluoncv.model_zoo.rcnn.rpn.anchor.RPNAnchorGenerator(16, 256, [.5, 1, 2], [8, 16, 32], (8, 8))
anchors.initialize()
print(anchors(mx.nd.zeros((1, 3, 4, 4))).shape, mx.nd.ones(3).sum().asscalar())
mx.npx.set_np()
print(mx.np.PZERO, mx.np.NZERO, mx.np.PINF, mx.np.NINF, mx.np.NAN, mx.np.NaN, hasattr(numpy, "PZERO"))
print(mx.np.in1d(mx.np.array([[1, 2], [3, 4]]), mx.np.array([1, 4])).asnumpy().tolist(),
      mx.np.msort(mx.np.array([[3, 1], [2, 9]])).asnumpy().tolist())
print(numpy.any(mx.np.array([0, 1])), numpy.all(mx.np.array([0, 1])), numpy.prod(mx.np.array([2, 3.0])),
      numpy.round(mx.np.array([1.6])).item())
from mxnet.gluon.contrib.estimator import EarlyStoppingHandler
handler = EarlyStoppingHandler(mx.metric.Accuracy(), mode="min")
handler.train_begin(None)
print(handler.best)
warnings.simplefilter("error", DeprecationWarning)
print(mx.nd.ones(6).reshape(shape=tuple(numpy.array([2, 3]))).shape,
      mx.sym.reshape(mx.sym.var("x"), shape=list(numpy.array([2, 3]))).attr("shape"))
print(mx.recordio.unpack(mx.recordio.pack(mx.recordio.IRHeader(0, [1, 2], 3, 0), b"x"))[0].label.tolist())
"""


def test_mxnet_gluoncv_and_gluonnlp_run(tmp_path: Path) -> None:
    """In a new process, imported late, without what numpy 2 removed, with a torch that gluoncv refuses."""
    (tmp_path / "torch.py").write_text("__version__ = '2.13.0'")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "False False",  # importing multifit prepares mxnet but does not import it
        "TaskSpec []",
        "(1, 144, 4) 3.0",
        "0.0 -0.0 inf -inf nan nan False",
        "[True, False, False, True] [[2.0, 1.0], [3.0, 9.0]]",
        "True False 6.0 2.0",
        "inf",
        "(2, 3) [2, 3]",
        "[1.0, 2.0]",
    ]


@pytest.mark.parametrize("imported", [True, False])
def test_torch_is_hidden_from_gluoncv_alone_and_only_while_that_is_imported(
    imported: bool, monkeypatch: Any, tmp_path: Path
) -> None:
    (tmp_path / "gluoncv.py").write_text("import torch")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "gluoncv", raising=False)
    before = types.ModuleType("torch") if imported else None
    monkeypatch.setitem(sys.modules, "torch", before)
    if before is None:
        del sys.modules["torch"]
    with pytest.raises(ImportError, match="torch"):
        importlib.import_module("gluoncv")
    assert sys.modules.get("torch") is before
    assert compat.Finder().find_spec("torch", None) is None


def test_names_of_numpy_are_put_back_where_they_are_missing(monkeypatch: Any) -> None:
    module = types.SimpleNamespace(bool="mine")
    assert compat.add_missing(module, compat.ALIASES) == ["float", "int", "Inf"]
    assert (module.bool, module.float, module.int, module.Inf) == ("mine", float, int, numpy.inf)
    for name in ("PZERO", "in1d"):
        monkeypatch.delattr(numpy, name, raising=False)
    before = dict(vars(numpy))
    with pytest.raises(KeyError), compat.numpy_1(numpy):  # only while mxnet is imported
        assert (numpy.PZERO, list(numpy.in1d([[1], [2]], [2]))) == (0, [False, True])
        raise KeyError
    assert vars(numpy) == before


def test_operators_take_numbers_of_numpy() -> None:
    module = types.SimpleNamespace()
    with compat.plain_numbers(module):
        pass
    values = [(numpy.int64(2), None), [numpy.float64(0.5)], (1, 2), numpy.float64(0.5), "x"]
    assert list(map(module.str, values)) == ["(2, None)", "[0.5]", "(1, 2)", "0.5", "x"]


IMPORTS = {
    None: (ImportError, r"pip install mxnet==1.9.1, or mxnet-cu112"),
    "raise ModuleNotFoundError('no distutils', name='distutils')":
        (ImportError, "Python 3.12 no longer has; .*pip install setuptools"),
    "import numpy; numpy.no_such_name":
        (ImportError, r"fails .*\(AttributeError: .*put `import multifit` first"),
    "import no_such_module": (ModuleNotFoundError, "no_such_module"),
}  # fmt: skip


@pytest.mark.parametrize("code", IMPORTS)
def test_an_mxnet_that_cannot_be_imported(code: str | None, monkeypatch: Any, tmp_path: Path) -> None:
    assert compat.load_mxnet() is sys.modules["mxnet"] is compat.mx  # once imported, it is used
    monkeypatch.setitem(sys.modules, "mxnet", None)
    if code is not None:
        (tmp_path / "mxnet.py").write_text(code)
        monkeypatch.delitem(sys.modules, "mxnet")
        monkeypatch.syspath_prepend(tmp_path)
    error, message = IMPORTS[code]
    with pytest.raises(error, match=message) as caught:
        compat.load_mxnet()
    assert isinstance(caught.value.__cause__, AttributeError if "fails" in message else type(None))


@pytest.mark.parametrize("module", [multifit, compat])
def test_an_unknown_name_is_an_error(module: Any) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018
    assert not hasattr(module, "__wrapped__")
