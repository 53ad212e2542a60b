"""Scenes: one body, three tasks, with the specs of the single tasks."""

import json
from pathlib import Path

import pytest

from multifit.cli.taskfile import TaskFile

from .commands import TASKS, is_drawn, predict, random_picture, train

# isort: split
import mxnet as mx

FILE = TASKS / "scenes.py"
SMALL = ("epochs=1", "train_count=4", "val_count=2", "batch_size=2", "size=64")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Train the smallest task once; return its folder."""
    folder = tmp_path_factory.mktemp("run")
    train(FILE, folder, *SMALL, "segmentation_weight=2")
    return folder


def test_a_small_training(run):
    figures = json.loads((run / "history.json").read_text())
    pixels, *others = [
        figures[f"train_{name}"][0] for name in ("segmentation/pixels", "detection/multibox", "count/count")
    ]
    assert figures["train_loss"][0] == pytest.approx(2 * pixels + sum(others), rel=1e-5)
    for name in ("detection/VOC.mAP", "segmentation/seg.mIoU", "count/accuracy"):
        assert 0 <= figures[f"val_{name}"][0] <= 1
    assert (run / "scenes.png").stat().st_size > 20_000


def test_a_weight_of_zero_does_not_train_a_head(tmp_path):
    train(FILE, tmp_path, *SMALL, "segmentation_weight=0", "count_weight=0", "--devices", "2")
    trained = mx.nd.load(str(tmp_path / "final.params"))
    biases = {
        name: array for name, array in trained.items() if name.endswith("bias") and "BatchNorm" not in name
    }
    moved = {name for name, array in biases.items() if array.abs().sum().asscalar() > 0}
    assert moved == {name for name in biases if name.startswith("detection.")}


def test_the_body_runs_once():
    task = TaskFile(FILE).module
    net = task.net([mx.cpu()])
    calls = []
    net.body.register_forward_hook(lambda *_: calls.append(1))
    with mx.autograd.train_mode():
        net.hybridize(False)
        net(mx.nd.zeros((1, 3, 128, 128)))
    assert len(calls) == 1


def test_predict_draws_boxes_mask_and_count(run, tmp_path, capsys):
    (line,) = predict(FILE, run, capsys, "--output", str(tmp_path), random_picture(tmp_path))
    assert is_drawn(line)
