"""Gluon's own tests of its Estimator, run on a MultiEstimator; see README.md."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
import tempfile
import types
import unittest
from pathlib import Path
from typing import Any, Callable

import pytest

from .adapter import Estimator

import mxnet as mx  # isort: skip
from mxnet.gluon.contrib import estimator as gluons  # isort: skip

FILES = json.loads(Path(__file__).with_name("lifted.json").read_text("utf-8"))
CASES = [(file, test) for file, content in FILES.items() for test in content["tests"]]


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> Path:
    """Return the folder with Gluon's tests; skip where there is none."""
    path = request.config.getoption("gluon_tests") or os.environ.get("GLUON_TESTS")
    if not path:
        pytest.skip("Gluon's tests are not here: fetch them as README.md says, and give --gluon-tests DIR")
    return Path(path)


@pytest.mark.parametrize(("file", "test"), CASES, ids=[test for _, test in CASES])
def test_gluons_test_passes(file: str, test: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (folder / file).read_bytes()
    blob = hashlib.sha1(b"blob %d\0" % len(source) + source).hexdigest()
    assert blob == FILES[file]["blob"], f"{folder / file} is not the file of MXNet 1.9.1"
    monkeypatch.setattr(gluons, "Estimator", Estimator)
    monkeypatch.setattr(gluons.estimator, "Estimator", Estimator)
    monkeypatch.setattr(
        mx.gluon.model_zoo.vision, "resnet18_v1", _untrained(mx.gluon.model_zoo.vision.resnet18_v1)
    )
    for name, content in _helpers().items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # which some tests replace
    lifted = {line for line, _ in FILES[file]["tests"][test]}
    lift = _Lift(set(lifted))
    tree = lift.visit(ast.parse(source))
    assert not lift.lines, f"{file} has no statements at the lines {lift.lines}"
    namespace: dict[str, Any] = {"__name__": file[:-3]}
    exec(compile(ast.fix_missing_locations(tree), file, "exec"), namespace)
    namespace[test]()


class _Lift(ast.NodeTransformer):
    """Replaces the statements that begin at some lines by ``pass``; `lines` are those not found yet."""

    def __init__(self, lines: set[int]) -> None:
        self.lines = lines

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.stmt) and node.lineno in self.lines:
            self.lines.remove(node.lineno)
            return ast.copy_location(ast.Pass(), node)
        return self.generic_visit(node)


def _untrained(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that initialises a net where Gluon's downloads it."""

    def untrained(pretrained: bool = False, ctx: Any = None, **options: Any) -> Any:
        net = make(**options)
        if pretrained:
            net.initialize(ctx=ctx)
        return net

    return untrained


def _helpers() -> dict[str, dict[str, Any]]:
    """Return what Gluon's tests import beside MXNet: nose, which is no longer maintained, and a helper."""
    return {
        "nose": {},
        "nose.tools": {"assert_raises": unittest.TestCase().assertRaises},
        "common": {"TemporaryDirectory": tempfile.TemporaryDirectory},
    }
