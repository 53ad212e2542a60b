"""A real task, small enough to be trained in a moment, and the command line to train it with."""

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from multifit.cli import main

TASK = '''
"""Which of two classes, and how far along the line."""
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn
from multifit import LossSpec, TaskSpec, TrainerSpec

epochs = 2
rate = 0.05

class TwoHeads(nn.HybridBlock):
    def __init__(self):
        super().__init__()
        self.kind, self.place = nn.Dense(2), nn.Dense(1)

    def hybrid_forward(self, F, point):
        return self.kind(point), self.place(point)

def net():
    return TwoHeads()

def spec():
    return TaskSpec(
        inputs=["point"], outputs=["kind", "place"], labels=["kind", "place"],
        losses={
            "kind": gluon.loss.SoftmaxCrossEntropyLoss(),
            "place": LossSpec(gluon.loss.L2Loss(), weight=0.5),
        },
    )

def trainers(net):
    return TrainerSpec(".*", "sgd", {"learning_rate": rate})

def data(seed):
    point = np.random.RandomState(0).randn(40, 3).astype("float32")
    kind, place = (point[:, 0] > 0).astype("int32"), point[:, :1] + point[:, 1:2]
    train, val = (gluon.data.ArrayDataset(point[part], kind[part], place[part]) for part in np.s_[:30, 30:])
    return gluon.data.DataLoader(train, 10, shuffle=True), gluon.data.DataLoader(val, 10)
'''


@dataclass
class Result:
    """The exit status and the output of the command."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """Run in an empty folder, and undo what reading a task file adds to the import system."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in [name for name in sys.modules if name.startswith("multifit_task_")]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def small_curves(monkeypatch, request):
    """Draw small curves: two thirds of a small run is matplotlib. `trained_folder` has the real ones."""
    if "without_matplotlib" not in request.node.name:
        monkeypatch.setattr(
            "multifit.estimator.run_folder.curves", lambda history: Figure(figsize=(0.1, 0.1))
        )


@pytest.fixture
def write(tmp_path) -> Callable[..., Path]:
    """Return a function that writes a task file: the small task, with replacements and more code."""

    def make(more: str = "", **replaced: str) -> Path:
        code = TASK
        for old, new in replaced.items():
            assert old in code
            code = code.replace(old, new)
        path = tmp_path / "small.py"
        path.write_text(code + more)
        return path

    return make


@pytest.fixture
def multifit(capsys) -> Callable[..., Result]:
    """Return a function that runs the command with arguments as text."""

    def run(*arguments: Any) -> Result:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def trained_folder(tmp_path_factory) -> Path:
    """Return a folder with the small task, and its run in runs/small, trained once for all tests."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "small.py").write_text(TASK)
    path, before = list(sys.path), os.getcwd()
    os.chdir(folder)
    try:
        options = ["--set", "rate=0.1", "--seed", "3", "--quiet"]
        assert main(["train", str(folder / "small.py"), *options]) == 0
    finally:
        os.chdir(before)
        sys.path[:] = path
    return folder


@pytest.fixture
def trained(trained_folder, tmp_path) -> Path:
    """Return a task file whose run, trained with a rate that is not the file's, is in runs/small."""
    shutil.copytree(trained_folder, tmp_path, dirs_exist_ok=True)
    return tmp_path / "small.py"
