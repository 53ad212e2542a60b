"""Scenes: one body, three tasks, with the specs of the single tasks."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from multifit.taskfile import TaskFile

from .commands import TASKS, is_drawn, predict, random_picture, train

# isort: split
import mxnet as mx
from mxnet import gluon

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


def test_the_picture_shows_right_scenes_first():
    task = TaskFile(FILE).module
    scenes = task.scenes(task.val_count, 32, held_out=True)
    outputs = {  # the truth, but the first scene lacks its digit, and the second one its mask
        "count/count": np.eye(5)[scenes.count],
        "detection/boxes": scenes.boxes[:, :, :4],
        "detection/ids": scenes.boxes[:, :, 4:5],
        "detection/scores": (scenes.boxes[:, :, 4:5] >= 0).astype("float32"),
        "segmentation/scores": np.eye(11)[scenes.mask].transpose(0, 3, 1, 2),
    }
    outputs["detection/scores"][0] = 0
    outputs["segmentation/scores"][1] = np.eye(11)[0][:, None, None]
    columns = task.normalize(scenes.image), scenes.boxes, scenes.mask, scenes.count

    def titles(number):
        loader = gluon.data.DataLoader(gluon.data.ArrayDataset(*(column[:number] for column in columns)), 4)
        estimator = SimpleNamespace(predict=lambda image: {k: v[: len(image)] for k, v in outputs.items()})
        [sheet] = task.pictures(estimator, (None, loader)).values()
        return [axes.get_title() for axes in sheet.axes if axes.get_title()]

    fullest = titles(task.val_count)
    assert len(fullest) == 8
    assert all(title.startswith("4: ") and "true" not in title for title in fullest)
    right, without_mask, without_digit = titles(3)
    assert right.startswith("1: ") and without_mask.startswith("4: ")
    assert without_digit == "1: nothing (true: 1: 4)"


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
