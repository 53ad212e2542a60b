"""Detection: small trainings of every body on every source; the targets of an SSD."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from multifit.cli.taskfile import TaskFile

from .commands import TASKS, check, is_drawn, predict, random_picture, train

# isort: split
import mxnet as mx
from gluoncv.nn.coder import NormalizedBoxCenterDecoder
from mxnet import nd

FILE = TASKS / "detection.py"
SMALL = ("epochs=1", "train_count=4", "val_count=2", "batch_size=2", "size=64")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Train the smallest task once, on two devices; return its folder."""
    folder = tmp_path_factory.mktemp("run")
    train(FILE, folder, *SMALL, "base=tiny", "dataset=shapes", "--devices", "2")
    return folder


@pytest.fixture
def task():
    """Return the task's module."""
    return TaskFile(FILE).module


def test_a_small_training(run):
    figures = json.loads((run / "history.json").read_text())
    parts = figures["train_multibox.cls"][0] + figures["train_multibox.box"][0]
    assert figures["train_loss"][0] == pytest.approx(parts, rel=1e-5)
    assert math.isfinite(parts) and 0 <= figures["val_VOC.mAP"][0] <= 1
    assert figures["lr"] == [pytest.approx(1e-4)]  # after the first of two steps
    assert (run / "samples.png").stat().st_size > 10_000


def test_another_body_fits():  # nightly/table.py trains it
    check(FILE, *SMALL, "base=resnet18_v1")


def test_predict_draws_the_boxes(run, tmp_path, capsys):
    (line,) = predict(FILE, run, capsys, "--output", str(tmp_path), random_picture(tmp_path))
    assert is_drawn(line)


def test_decoded_targets_are_the_boxes_of_the_objects(task):
    net, images = task.net([mx.cpu()]), task.scenes.scenes(3, task.size)
    classes, offsets = task.ssd_targets.targets(net.anchors, images.boxes)
    decode = NormalizedBoxCenterDecoder(stds=(0.1, 0.1, 0.2, 0.2))
    boxes = decode(nd.array(offsets), net.anchors).asnumpy()
    for image in range(3):
        decoded = {
            (*boxes[image, i].round().astype(int), classes[image, i] - 1)
            for i in np.flatnonzero(classes[image])
        }
        expected = {(*row[:4].astype(int), row[4]) for row in images.boxes[image] if row[4] >= 0}
        assert decoded == expected


def test_padding_matches_no_anchor(task):
    net, boxes = task.net([mx.cpu()]), task.scenes.scenes(2, task.size).boxes
    longer = np.concatenate([boxes, np.full((2, 3, 6), -1, "float32")], axis=1)
    targets = (task.ssd_targets.targets(net.anchors, each) for each in (boxes, longer))
    for expected, padded in zip(*targets):
        np.testing.assert_array_equal(expected, padded)


def test_anchors_cover_the_image(task):
    anchors = task.net([mx.cpu()]).anchors.asnumpy()
    assert anchors.shape == (1, 4 * (16**2 + 8**2 + 4**2), 4)
    assert (anchors[..., :2].min(), anchors[..., :2].max()) == (4, 124)
