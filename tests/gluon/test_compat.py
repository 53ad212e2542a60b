"""mxnet imports on every Python we serve, and says clearly why where it cannot."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import numpy
import pytest

from multifit.gluon import compat
from multifit.gluon.versions import LooseVersion, StrictVersion

OLD_NUMPY = LooseVersion(numpy.__version__) < LooseVersion("1.24")
ROOT = Path(__file__).parents[2]

BLOCK_DISTUTILS = """
import sys
class NoDistutils:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("distutils", "setuptools", "_distutils_hack"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, NoDistutils())
"""


def run(code: str) -> str:
    """Run code in a fresh interpreter of this kind; return what it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# -------------------------------------------------------------------------------- as a user meets it


def test_gluoncv_and_gluonnlp_import_and_mxnet_computes():
    code = """
from multifit.gluon.compat import mx
import gluoncv, gluonnlp
anchors = gluoncv.model_zoo.rcnn.rpn.anchor.RPNAnchorGenerator(16, 256, [.5, 1, 2], [8, 16, 32], (8, 8))
anchors.initialize()
print(anchors(mx.nd.zeros((1, 3, 4, 4))).shape, mx.nd.ones(3).sum().asscalar())
"""
    assert run(code) == "(1, 144, 4) 3.0"


def test_works_where_nothing_provides_distutils():
    code = (
        BLOCK_DISTUTILS
        + """
from multifit.gluon.compat import mx
import gluoncv, gluonnlp
print(mx.nd.ones(3).sum().asscalar())
"""
    )
    assert run(code) == "3.0"


def test_a_failed_import_of_mxnet_before_ours_does_no_harm():
    code = """
try:
    import mxnet
    print("alone")
except AttributeError:
    print("fails alone")
from multifit.gluon.compat import mx
print(mx.nd.ones(3).sum().asscalar())
"""
    assert run(code).split("\n") == ["alone" if OLD_NUMPY else "fails alone", "3.0"]


def test_mxnet_that_was_there_before_is_kept():
    assert compat.load_mxnet() is sys.modules["mxnet"] is compat.mx


# -------------------------------------------------------------------------------- numpy


def test_numpy_that_misses_nothing_is_left_alone():
    before = set(vars(numpy))
    assert compat.add_numpy_aliases(numpy) == []
    assert set(vars(numpy)) == before
    assert not OLD_NUMPY or "bool" not in before


def test_only_missing_aliases_are_put_back():
    module = types.SimpleNamespace(bool="mine")
    assert compat.add_numpy_aliases(module) == ["float", "int"]
    assert (module.bool, module.float, module.int) == ("mine", float, int)


@pytest.mark.parametrize("version", ["2.0.0", "2.1.0rc1", "10.0"])
def test_numpy_2_is_refused(version):
    with pytest.raises(ImportError, match=r'cannot run with numpy .*pip install "numpy<1.24"') as caught:
        compat.refuse_numpy_2(version)
    assert version in str(caught.value)


# -------------------------------------------------------------------------------- distutils


def test_distutils_that_is_there_is_left_alone(monkeypatch):
    own = types.ModuleType("distutils.version")
    monkeypatch.setitem(sys.modules, "distutils", types.ModuleType("distutils"))
    monkeypatch.setitem(sys.modules, "distutils.version", own)
    assert compat.add_distutils_version() is False
    assert sys.modules["distutils.version"] is own


def test_missing_distutils_is_provided(monkeypatch):
    monkeypatch.setitem(sys.modules, "distutils", None)
    monkeypatch.setitem(sys.modules, "distutils.version", None)
    assert compat.add_distutils_version() is True
    import distutils
    from distutils import version

    assert version.LooseVersion is LooseVersion and version.StrictVersion is StrictVersion
    assert distutils.version is version
    assert distutils.__path__ == []  # nothing else of distutils is pretended


@pytest.mark.parametrize("cls", [LooseVersion, StrictVersion])
def test_versions_are_ordered_by_number(cls):
    assert cls("1.9.1") < cls("1.10.0") <= "1.10.0" < cls("2.0")
    assert cls("1.9.1") == "1.9.1" and cls("1.9.1") != cls("1.9.2")
    assert hash(cls("1.9.1")) == hash(cls("1.9.1"))
    assert str(cls("1.9.1")) == "1.9.1" and repr(cls("1.9.1")) == f"{cls.__name__}('1.9.1')"
    assert cls("1.9") != 1.9
    with pytest.raises(TypeError):
        cls("1.9") < 1.9  # noqa: B015


def test_loose_version_takes_any_text():
    assert LooseVersion("0.10.5.post0").version == [0, 10, 5, "post", 0]
    assert LooseVersion("2.0.rc1") < LooseVersion("2.0.1")


def test_strict_version_orders_pre_releases_before_the_release():
    assert StrictVersion("1.2a1") < StrictVersion("1.2b1") < StrictVersion("1.2") == StrictVersion("1.2.0")
    with pytest.raises(ValueError, match="invalid version number '1.2.post0'"):
        StrictVersion("1.2.post0")


# -------------------------------------------------------------------------------- mxnet


def test_missing_mxnet_names_the_extras(monkeypatch):
    monkeypatch.setitem(sys.modules, "mxnet", None)
    with pytest.raises(ImportError, match=r'pip install "multifit\[cpu\]".*multifit\[cu112\]'):
        compat.load_mxnet()


def fake_mxnet(monkeypatch, folder: Path, code: str) -> None:
    (folder / "mxnet.py").write_text(code)
    monkeypatch.delitem(sys.modules, "mxnet")
    monkeypatch.syspath_prepend(folder)


def test_mxnet_that_fails_says_to_import_multifit_first(monkeypatch, tmp_path):
    fake_mxnet(monkeypatch, tmp_path, "import numpy; numpy.no_such_name")
    with pytest.raises(
        ImportError, match=r"fails .*\(AttributeError: .*put `import multifit` first"
    ) as caught:
        compat.load_mxnet()
    assert isinstance(caught.value.__cause__, AttributeError)


def test_a_module_that_mxnet_misses_is_named(monkeypatch, tmp_path):
    fake_mxnet(monkeypatch, tmp_path, "import no_such_module")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        compat.load_mxnet()
